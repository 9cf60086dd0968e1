"""Hooks of ours in torch's registries, which may outlive the object that they are for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.optim import Optimizer


def weak_hook(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``method`` as a function that does not keep its object, and does nothing after it.

    Dynamo calls it as it is: a training step that is compiled whole is hooked like any other.
    """
    weak_method = weakref.WeakMethod(method)

    def hook(*args: Any) -> Any:
        bound = weak_method()
        return bound(*args) if bound is not None else None

    return cast("Callable[..., Any]", torch.compiler.disable(hook))


def takes_hooks(optimizer: Optimizer) -> bool:
    """Whether ``optimizer`` was made as one: a wrapper may be of the type and nothing more."""
    try:
        optimizer.register_state_dict_post_hook(_nothing).remove()
    except AttributeError:  # it has no tables for hooks: nobody has called its ``__init__``
        return False
    return True


def _nothing(_optimizer: Optimizer, _state: dict[str, Any]) -> None:
    """Change nothing."""
