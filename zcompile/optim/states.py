"""Optimizer states that torch made in ordinary memory, moved to their homes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from zcompile.ir import Tier
from zcompile.optim.host import Host


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One state of the size of its managed parameter, ``param``."""

    name: str
    tensor: Tensor
    param: Tensor


def states_of(optimizer: Optimizer, host: Host) -> Iterator[StateTensor]:
    """Yield the states of parameter size of the managed parameters of any optimizer.

    Counts, rows and columns are small and stay where their optimizer made them.
    """
    # A loaded state dict can leave keys that are no parameters.
    states = cast("Mapping[object, Mapping[str, object]]", optimizer.state)
    for param, state in states.items():
        if not isinstance(param, Tensor) or (name := host.name_of(param)) is None:
            continue
        for kind, tensor in state.items():
            if isinstance(tensor, Tensor) and tensor.shape == param.shape and tensor.dim() > 0:
                yield StateTensor(f"{name}:{kind}", tensor, param)


def left_bytes(optimizer: Optimizer, host: Host, done: Collection[int] = ()) -> int:
    """Return the bytes of homes that torch's own step will touch.

    They are those of parameters that have a gradient and whose ids are not in ``done``,
    with their gradients and states.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    left = {id(param) for param in params if param.grad is not None}.difference(done)
    if not left:
        return 0
    tensors = [tensor for param in params if id(param) in left for tensor in (param, param.grad)]
    tensors += [state.tensor for state in states_of(optimizer, host) if id(state.param) in left]
    return sum(
        each.nbytes
        for each in tensors
        if each.layout is torch.strided and host.machine.homes.find(each) is not None
    )


def bring_home(optimizer: Optimizer, host: Host) -> int:
    """Move every state of parameter size to the tier of its placement; return the bytes moved.

    The tensor objects stay, so whoever else holds one sees it at home too.  States that lie
    on their tier already are not touched.
    """
    strays: dict[Tier, list[StateTensor]] = {}
    for state in states_of(optimizer, host):
        place = host.machine.homes.find(state.tensor)
        now = place.home.tier if place is not None else Tier.DEVICE
        wanted = host.tier_of(state.name)
        if now is not wanted:
            strays.setdefault(wanted, []).append(state)
    for tier, states in strays.items():
        for state in states:
            if host.machine.homes.find(state.tensor) is None:
                _make_own_storage(state.tensor)
        labelled = [(state.name, state.tensor) for state in states]
        host.machine.homes.adopt(labelled, tier, host.machine.transfers)
    return sum(state.tensor.nbytes for states in strays.values() for state in states)


def _make_own_storage(state: Tensor) -> None:
    """Take ``state`` out of a storage that it shares: the whole of it would move otherwise."""
    if state.layout is torch.strided and state.untyped_storage().nbytes() != state.nbytes:
        state.data = state.detach().clone(memory_format=torch.preserve_format)
