"""Sums of the pages of extents, and what is known of them.

Note [Known sums].  A table has one sum for each page of the space of extents; 0 means that none is
known.  Whatever carries a page past the page cache stores its sum when it has been written, and
compares when it is read.  Code that writes through a mapping brings the page into the page cache.
So at the start of each schedule, before any direct write, the sums are forgotten of all pages that
the cache has, or has had: they are known again with the next write.  A page whose sum is wrong
while it is in the cache was written meanwhile, and has its sum stored anew.

Sums live in memory, for as long as the files.  The library computes CRC-32C; without it it is the
CRC-32 of ``zlib``.  Both find every burst of up to 32 wrong bits.
"""

from __future__ import annotations

import ctypes
import weakref
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from zcompile.ir import PAGE_BYTES, page_aligned
from zcompile.runtime import libc
from zcompile.runtime.blocks import SUM_BYTES
from zcompile.runtime.native import Native, load

MOST_BYTES = 64 << 40
"""The largest space of extents that a table has addresses for."""

LEAF_BYTES = 64 << 10
"""What is in the cache is told apart down to this size."""

Sums = npt.NDArray[np.uint32]


class SumTable:
    """The sums of a space of extents, at addresses that stay; memory comes as the space grows."""

    def __init__(self) -> None:
        nbytes = MOST_BYTES // PAGE_BYTES * SUM_BYTES
        self._address = libc.reserve(nbytes)
        self._nbytes = 0
        weakref.finalize(self, libc.unmap, self._address, nbytes).atexit = False

    def at(self, offset: int) -> int:
        """Return the address of the sum of the page that holds byte ``offset`` of the space."""
        return self._address + offset // PAGE_BYTES * SUM_BYTES

    def grow(self, end: int) -> None:
        """Have room for a space of ``end`` bytes; new sums are unknown."""
        assert end <= MOST_BYTES, "the table has no addresses for so many pages"
        nbytes = page_aligned(-(-end // PAGE_BYTES) * SUM_BYTES)
        if nbytes > self._nbytes:
            libc.map_anonymous_at(self._address + self._nbytes, nbytes - self._nbytes)
            self._nbytes = nbytes

    def forget(self, offset: int, nbytes: int) -> None:
        """Let the sums be unknown of all pages that the bytes touch."""
        forget(self.at(offset), offset, nbytes)


def forget(sums: int, offset: int, nbytes: int) -> None:
    """Let the sums at address ``sums`` be unknown, of all pages that the bytes touch."""
    num_pages = -(-(offset + nbytes) // PAGE_BYTES) - offset // PAGE_BYTES
    ctypes.memset(sums, 0, num_pages * SUM_BYTES)


def store(sums: int, offset: int, address: int, nbytes: int) -> None:
    """Store the sums of what has been written to ``offset`` of a file, of its whole pages."""
    known, found, _ = _both(sums, offset, address, nbytes)
    known[:] = found


def wrong_page(sums: int, fd: int, offset: int, address: int, nbytes: int) -> int | None:
    """Compare the whole pages that were read from ``offset`` of the file; ``None`` if all is well.

    Else the offset of the first one that has another sum than the known one.  Unknown ones, and
    those of pages in the page cache, are stored.
    """
    known, found, first = _both(sums, offset, address, nbytes)
    for at in np.flatnonzero((known != found) & (known != 0)).tolist():
        there = first + at * PAGE_BYTES
        if libc.pages_seen(fd, there, PAGE_BYTES) == 0:
            return there
    known[:] = found
    return None


def of_pages(address: int, num_pages: int) -> Sums:
    """Return the sums of the pages from ``address`` on; none of them is 0."""
    found = np.zeros(num_pages, np.uint32)
    native = load()
    if isinstance(native, Native):
        arguments = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
        native.function("zinf_page_sums", arguments, None)(address, num_pages, found.ctypes.data)
        return found
    memory = memoryview((ctypes.c_char * (num_pages * PAGE_BYTES)).from_address(address))
    for at in range(num_pages):
        found[at] = zlib.crc32(memory[at * PAGE_BYTES : (at + 1) * PAGE_BYTES]) or 1
    return found


def seen_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield ``(offset, nbytes)`` of parts of a file with all that is or was in the page cache."""
    parts = [(start, end - start)]
    while parts:
        offset, nbytes = parts.pop()
        num_seen = libc.pages_seen(fd, offset, nbytes) if nbytes else 0
        if num_seen == 0:
            continue
        if nbytes <= LEAF_BYTES or num_seen * PAGE_BYTES >= nbytes:
            yield offset, nbytes
            continue
        half = page_aligned(nbytes // 2)
        parts += [(offset + half, nbytes - half), (offset, half)]


def _both(sums: int, offset: int, address: int, nbytes: int) -> tuple[Sums, Sums, int]:
    """Return the known and the found sums of the whole pages, and where the first of them begins.

    The known ones are the table's own.
    """
    head = min(-offset % PAGE_BYTES, nbytes)
    num_pages = (nbytes - head) // PAGE_BYTES
    if num_pages == 0:
        return np.zeros(0, np.uint32), np.zeros(0, np.uint32), offset + head
    at = sums + SUM_BYTES * bool(head)
    table = (ctypes.c_uint32 * num_pages).from_address(at)
    known: Sums = np.ctypeslib.as_array(table)
    return known, of_pages(address + head, num_pages), offset + head
