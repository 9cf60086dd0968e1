"""Sums of squares in an order that nothing but the number of elements decides.

Chunks of ``CHUNK_NUMEL`` elements are added up one after the other; within a chunk there are
``LANES`` sums, which each take every sixteenth element and are then halved pairwise.  All in
double precision, in which the square of an fp32 number is exact.  The library and NumPy give the
same bits, whatever the threads, the instruction set and the pieces that the caller has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from zcompile.runtime.native import Native, load
from zcompile.runtime.native_optim import Optimizers
from zcompile.runtime.optim_batch import Item, batch

CHUNK_NUMEL = 32768
LANES = 16

TYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Types of elements that sums can be taken of."""


def can_sum(tensor: Tensor) -> bool:
    """Say whether ``tensor`` is one dense block in memory, of a type that can be summed."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.dtype in TYPES
        and not tensor.is_neg()
        and _flat(tensor) is not None
    )


def square_sum(tensor: Tensor) -> float:
    """Return the sum of the squares of ``tensor``, of which ``can_sum`` holds."""
    flat = _flat(tensor.detach())
    assert flat is not None, "only dense tensors are summed"
    if flat.numel() == 0:
        return 0.0
    native = load()
    if isinstance(native, Native):
        return float(Optimizers(native).square_sums(batch([Item(flat, flat)]))[0])
    return in_numpy(flat)


def in_numpy(flat: Tensor) -> float:
    """Return what ``square_sum`` does of a flat tensor, without the library."""
    total = 0.0
    for start in range(0, flat.numel(), CHUNK_NUMEL):
        part = flat[start : start + CHUNK_NUMEL].to(torch.float32).numpy().astype(np.float64)
        rows = np.zeros((-(-len(part) // LANES), LANES))
        rows.reshape(-1)[: len(part)] = part
        sums: npt.NDArray[np.float64] = np.add.accumulate(rows * rows, axis=0)[-1]
        while len(sums) > 1:
            half = len(sums) // 2
            sums = sums[:half] + sums[half:]
        total += float(sums[0])
    return total


def _flat(tensor: Tensor) -> Tensor | None:
    """Return the elements in the order of memory; ``None`` if they do not fill their span."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return None
        expected *= size
    return tensor.as_strided((tensor.numel(),), (1,))
