"""The region of device memory that fetched copies live in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from zcompile.ir import page_aligned
from zcompile.runtime import libc
from zcompile.runtime.buffer import buffer_over, tensor_over


class Arena:
    """``nbytes`` of page-aligned memory; freed when it and its last tensor have gone.

    Huge pages under it nearly double the speed of direct I/O.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = page_aligned(nbytes)
        """Size in bytes, whole pages."""
        mapped_bytes = max(self.nbytes, page_aligned(1))
        self.address = libc.map_anonymous(mapped_bytes)
        """Where it begins in this process."""
        libc.advise(self.address, mapped_bytes, libc.Advice.HUGEPAGE)
        self._buffer = buffer_over(
            self.address, mapped_bytes, partial(libc.unmap, self.address, mapped_bytes)
        )

    def tensor(
        self, offset: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]
    ) -> Tensor:
        """Return a tensor over the arena from byte ``offset`` on; it keeps the memory alive."""
        return tensor_over(self._buffer, offset, dtype, shape, stride)

    def vacate(self, offset: int) -> None:
        """Give the memory from byte ``offset``, page-aligned, on back until it is used again.

        What it held is lost; addresses and tensors stay valid.
        """
        if offset < self.nbytes:
            libc.advise(self.address + offset, self.nbytes - offset, libc.Advice.DONTNEED)
