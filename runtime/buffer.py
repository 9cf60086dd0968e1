"""Tensors over memory that we mapped ourselves."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Buffer = ctypes.Array[ctypes.c_char]
"""An object that stands for a piece of mapped memory; every tensor over it keeps it alive."""


def buffer_over(address: int, nbytes: int, on_death: Callable[[], None]) -> Buffer:
    """Return a buffer over mapped memory; ``on_death`` runs when its last tensor has gone.

    ``on_death`` is a finalizer: it may run inside any other code, so it takes no lock.
    It does not run at interpreter exit, when the system frees the memory anyway.
    """
    buffer = (ctypes.c_char * nbytes).from_address(address)
    weakref.finalize(buffer, on_death).atexit = False
    return buffer


def span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return how many elements lie between the first and the last one, both included.

    >>> span((2, 3), (1, 2)), span((), ()), span((0, 5), (5, 1))
    (6, 1, 0)
    """
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def tensor_over(
    buffer: Buffer, offset: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """Return a tensor over ``buffer`` from byte ``offset`` on.

    It is nobody's view, and Python has never seen its storage: autograd then adopts it as
    a gradient without a copy and accumulates into it in place.
    """
    count = span(shape, stride)
    if count == 0:
        return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="cpu")
    with torch.inference_mode(False):  # a parameter moved while evaluating is trained later
        flat: Any = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
        tensor: Tensor = flat.as_strided_(tuple(shape), tuple(stride))
    return tensor
