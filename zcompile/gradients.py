"""Gradients that autograd made itself, moved to the homes that the placement gives them.

A compiled backward returns gradients over homes, and autograd adopts them.  Where a hook of
the user replaces or keeps one, where its strides are not the parameter's, or where eager
code uses the parameter too, autograd makes a tensor of its own in ordinary memory.
"""

from __future__ import annotations

import warnings
import weakref
from functools import partial
from typing import Any, Protocol, cast

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from zcompile.bridge import torch_private
from zcompile.hooks import weak_hook
from zcompile.ir import Tier
from zcompile.runtime.machine import Machine

Watched = dict[int, tuple[weakref.ref[Tensor], RemovableHandle]]
"""Parameters by their ids, and what ends the watch over each."""


class Host(Protocol):
    """The session of one compiled model, as the watch over its gradients sees it."""

    @property
    def machine(self) -> Machine:
        """Homes and transfers of the model."""
        ...

    def name_of(self, parameter: Tensor) -> str | None:
        """Return what ``parameter`` is called; ``None`` if the session does not manage it."""
        ...

    def gradient_tier(self, parameter: str) -> Tier:
        """Return the tier that the placement gives to the gradient of ``parameter``."""
        ...

    def gradient_in_memory(self) -> None:
        """Take note that autograd has made a gradient in ordinary memory."""
        ...


class GradientWatch:
    """Looks at each gradient when autograd has finished it, and moves those that stray.

    Only what nobody else can hold is moved: views of a larger buffer, such as the buckets of
    DDP, and gradients that the user has views of stay where they are, with a warning.
    """

    def __init__(self, host: Host) -> None:
        self._host = weakref.ref(host)
        self._watched: Watched = {}
        self._warned = False
        weakref.finalize(self, _remove, self._watched).atexit = False

    def add(self, parameter: Tensor) -> None:
        """Watch the gradients of ``parameter``, if it can have any and is not watched yet."""
        known = self._watched.get(id(parameter))
        if not parameter.requires_grad or (known is not None and known[0]() is parameter):
            return
        own = cast("Any", parameter)
        handle = own.register_post_accumulate_grad_hook(weak_hook(self._bring_home))
        gone = partial(_forget, self._watched, id(parameter))
        self._watched[id(parameter)] = weakref.ref(parameter, gone), handle

    def _bring_home(self, parameter: Tensor) -> None:
        host, gradient = self._host(), parameter.grad
        name = host.name_of(parameter) if host is not None else None
        if host is None or name is None or gradient is None or not gradient.numel():
            return
        tier = host.gradient_tier(name)
        place = host.machine.homes.find(gradient)
        if place is None:
            host.gradient_in_memory()
        if tier is (place.home.tier if place is not None else Tier.DEVICE):
            return
        if place is None and not torch_private.is_sole_owner(gradient):
            self._warn(name, gradient)
        else:
            labelled = [(f"{name}:grad", gradient)]
            host.machine.homes.adopt(labelled, tier, host.machine.transfers)

    def _warn(self, name: str, gradient: Tensor) -> None:
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            f"the gradient of {name} ({gradient.nbytes} B), and maybe others, stays in ordinary "
            "memory, outside the budget: it is not dense or others hold its memory too, such as "
            "the buckets of DDP or a view of yours; let autograd make gradients "
            "(zero_grad(set_to_none=True)), and look at copies of them",
            stacklevel=2,
        )


def _forget(watched: Watched, number: int, _reference: object) -> None:
    watched.pop(number, None)


def _remove(watched: Watched) -> None:
    for _, handle in watched.values():
        handle.remove()
