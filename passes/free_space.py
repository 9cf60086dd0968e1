"""Free space: what of a row of bytes is not taken, for those who take and give back in time."""

from __future__ import annotations

from bisect import bisect_left, insort


class FreeSpace:
    """Gives out the smallest free piece that is large enough, the lowest of equal ones.

    Where there is none it grows: ``nbytes`` is how far.  Pieces that meet become one.

    >>> space = FreeSpace()
    >>> space.take(8), space.take(4), space.take(4), space.nbytes
    (0, 8, 12, 16)
    >>> space.give(0, 8); space.give(8, 4); space.take(12), space.nbytes
    (0, 16)
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._by_size: list[tuple[int, int]] = []
        """Size and offset of every free piece."""
        self._sizes: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        """By its end, where a free piece starts."""

    def take(self, nbytes: int) -> int:
        """Return the offset of ``nbytes`` that were free and are no longer."""
        if nbytes == 0:
            return 0
        at = bisect_left(self._by_size, (nbytes, -1))
        if at < len(self._by_size):
            size, offset = self._by_size[at]
            self._remove(offset, size)
        else:
            # What is free at the end need not be taken anew.
            offset = self._starts.get(self.nbytes, self.nbytes)
            size = nbytes
            if offset < self.nbytes:
                self._remove(offset, self.nbytes - offset)
            self.nbytes = offset + nbytes
        if size > nbytes:
            self._add(offset + nbytes, size - nbytes)
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """Give back what `take` gave."""
        if nbytes == 0:
            return
        end = offset + nbytes
        if (before := self._starts.get(offset)) is not None:
            self._remove(before, offset - before)
            offset = before
        if (after := self._sizes.get(end)) is not None:
            self._remove(end, after)
            end += after
        self._add(offset, end - offset)

    def _add(self, offset: int, nbytes: int) -> None:
        insort(self._by_size, (nbytes, offset))
        self._sizes[offset] = nbytes
        self._starts[offset + nbytes] = offset

    def _remove(self, offset: int, nbytes: int) -> None:
        del self._by_size[bisect_left(self._by_size, (nbytes, offset))]
        del self._sizes[offset]
        del self._starts[offset + nbytes]
