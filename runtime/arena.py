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

    Huge pages under it nearly double the speed of direct I/O.  Without them a slot takes no
    byte more than its own pages, and all of them come free when it is vacated: under huge
    pages the first byte of a slot takes 2 MiB, and what is vacated of one stays taken until
    the system splits it.
    """

    def __init__(self, nbytes: int, *, huge_pages: bool = True) -> None:
        self.nbytes = page_aligned(nbytes)
        """Size in bytes, whole pages."""
        mapped_bytes = max(self.nbytes, page_aligned(1))
        self.address = libc.map_anonymous(mapped_bytes)
        """Where it begins in this process."""
        self.huge_pages = huge_pages
        """Whether it asks for huge pages; if not, it refuses them."""
        advice = libc.Advice.HUGEPAGE if huge_pages else libc.Advice.NOHUGEPAGE
        libc.advise(self.address, mapped_bytes, advice)
        self._buffer = buffer_over(
            self.address, mapped_bytes, partial(libc.unmap, self.address, mapped_bytes)
        )

    def tensor(
        self, offset: int, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int]
    ) -> Tensor:
        """Return a tensor over the arena from byte ``offset`` on; it keeps the memory alive."""
        return tensor_over(self._buffer, offset, dtype, shape, stride)

    def vacate(self, offset: int, nbytes: int | None = None) -> None:
        """Give ``nbytes`` of memory from byte ``offset`` on back until they are used again.

        Both are page-aligned; without ``nbytes`` it is all from ``offset`` on.  What was held
        there is lost; addresses and tensors stay valid.
        """
        end = self.nbytes if nbytes is None else offset + nbytes
        assert end <= self.nbytes, "the slot reaches past the arena"
        if offset < end:
            libc.advise(self.address + offset, end - offset, libc.Advice.DONTNEED)
