"""How the extents of a run are striped over several files: pure arithmetic.

Extents count through one space.  A *band* of it is dealt out to some of the files in turn, a
stripe to each; it consists of whole rows of stripes.  A new band begins where a file can take no
more, and where the stripes become larger: each stripe of a home is a mapping of its own, and the
kernel allows a process only so many.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from zcompile.ir import page_aligned

STRIPE_BYTES = 4 << 20
"""The size of a stripe at first: a block of direct I/O, and whole huge pages."""

MOST_STRIPES = 4096
"""Stripes double in size whenever the space has become so many of them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """``nbytes`` at ``offset`` of the file at ``file``; they begin ``start`` bytes into a range."""

    file: int
    offset: int
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Band:
    """Bytes ``start`` to ``end`` of the space, striped over ``files``.

    In each of them it begins at the offset that ``firsts`` has in the same place.
    """

    start: int
    end: int
    stripe_bytes: int
    files: tuple[int, ...]
    firsts: tuple[int, ...]

    @property
    def _together_bytes(self) -> int:
        """How much lies together in one file."""
        return self.stripe_bytes if len(self.files) > 1 else self.end - self.start

    def piece(self, offset: int, start: int, nbytes: int) -> Piece:
        """Return as much of ``nbytes`` from byte ``offset`` of the space on as lies together."""
        together = self._together_bytes
        stripe, inside = divmod(offset - self.start, together)
        row, at = divmod(stripe, len(self.files))
        there = self.firsts[at] + row * together + inside
        return Piece(self.files[at], there, start, min(nbytes, together - inside))

    def place(self, file: int, offset: int) -> tuple[int, int] | None:
        """Return which byte of the space lies at ``offset`` of ``file``, and how many with it."""
        if file not in self.files:
            return None
        at, together = self.files.index(file), self._together_bytes
        row, inside = divmod(offset - self.firsts[at], together)
        there = self.start + (row * len(self.files) + at) * together + inside
        return (there, together - inside) if row >= 0 and there < self.end else None


@dataclass(frozen=True, slots=True)
class Stripes:
    """The bands of the space, without gaps, from ``start`` on.

    Replaced as a whole when it grows, so that readers need no lock.
    """

    start: int
    bands: tuple[Band, ...] = ()

    @property
    def end(self) -> int:
        """Where the space ends."""
        return self.bands[-1].end if self.bands else self.start

    def pieces(self, offset: int, nbytes: int) -> Iterator[Piece]:
        """Yield where ``nbytes`` from byte ``offset`` of the space on lie, in order."""
        at = bisect_right(self.bands, offset, key=_start) - 1
        done = 0
        while done < nbytes:
            while offset + done >= self.bands[at].end:
                at += 1
            piece = self.bands[at].piece(offset + done, done, nbytes - done)
            yield piece
            done += piece.nbytes

    def ranges(self, file: int, offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
        """Yield ``(start, nbytes)`` of what lies in the space for a range of a file."""
        done = 0
        while done < nbytes:
            places = (band.place(file, offset + done) for band in self.bands)
            there, together = next(found for found in places if found is not None)
            length = min(together, nbytes - done)
            yield there, length
            done += length

    def stripe_bytes(self, first: int) -> int:
        """Return how large stripes are where the space goes on; ``first`` is their first size."""
        size = first
        while self.end // size >= MOST_STRIPES:
            size *= 2
        return size

    def grown(self, share: int, stripe_bytes: int, ends: Sequence[tuple[int, int]]) -> Stripes:
        """Return the space with ``share`` more bytes of each of some files, whole stripes.

        ``ends`` has each file's number, and where it ended so far.
        """
        files, firsts = tuple(file for file, _ in ends), tuple(end for _, end in ends)
        new = Band(self.end, self.end + share * len(files), stripe_bytes, files, firsts)
        last = self.bands[-1] if self.bands else None
        if last is None or not _continues(last, new):
            return replace(self, bands=(*self.bands, new))
        return replace(self, bands=(*self.bands[:-1], replace(last, end=new.end)))


def share_of(nbytes: int, num_files: int, stripe_bytes: int) -> tuple[int, int]:
    """Return how much each file takes of at least ``nbytes``, and in stripes of which size.

    Whole stripes, but a single one of pages where they need not be that large.

    >>> share_of(9 << 20, 2, 4 << 20), share_of(20_000, 2, 4 << 20), share_of(20_000, 1, 4 << 20)
    ((8388608, 4194304), (12288, 12288), (20480, 4194304))
    """
    share = page_aligned(-(-nbytes // num_files))
    if num_files == 1:
        return share, stripe_bytes
    if share <= stripe_bytes:
        return share, share
    return -(-share // stripe_bytes) * stripe_bytes, stripe_bytes


def _start(band: Band) -> int:
    return band.start


def _continues(last: Band, new: Band) -> bool:
    if last.files != new.files:
        return False
    if len(new.files) > 1 and last.stripe_bytes != new.stripe_bytes:
        return False
    share = (last.end - last.start) // len(last.files)
    return all(end == first + share for first, end in zip(last.firsts, new.firsts, strict=True))
