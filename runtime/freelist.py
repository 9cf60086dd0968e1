"""Which byte ranges of a file are free."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class FreeList:
    """Free ranges by offset; neighbours are always joined into one.

    >>> free = FreeList()
    >>> free.give(0, 100)
    >>> free.take(30), free.take(80), free.take(70), free.free_bytes
    (0, None, 30, 0)
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._sizes: list[int] = []

    @property
    def free_bytes(self) -> int:
        """Return the bytes in all free ranges."""
        return sum(self._sizes)

    def take(self, nbytes: int) -> int | None:
        """Take ``nbytes`` from the smallest range with room; return their offset, if any."""
        fitting = ((size, at) for at, size in enumerate(self._sizes) if size >= nbytes)
        best = min(fitting, default=None)
        if best is None:
            return None
        size, at = best
        start = self._starts[at]
        if size == nbytes:
            del self._starts[at], self._sizes[at]
        else:
            self._starts[at] += nbytes
            self._sizes[at] -= nbytes
        return start

    def take_at(self, start: int, nbytes: int) -> bool:
        """Take ``nbytes`` from ``start`` on, if all of them are free; return whether.

        >>> free = FreeList()
        >>> free.give(0, 100)
        >>> free.take_at(40, 20), free.take_at(50, 20), free.free_bytes
        (True, False, 80)
        """
        at = bisect_right(self._starts, start) - 1
        if at < 0 or start + nbytes > self._starts[at] + self._sizes[at]:
            return False
        before = start - self._starts[at]
        after = self._sizes[at] - before - nbytes
        pieces = [
            (s, size) for s, size in ((start - before, before), (start + nbytes, after)) if size
        ]
        self._starts[at : at + 1] = [s for s, _ in pieces]
        self._sizes[at : at + 1] = [size for _, size in pieces]
        return True

    def give(self, start: int, nbytes: int) -> None:
        """Make the range free; no byte of it may be free already."""
        at = bisect_left(self._starts, start)
        assert at == 0 or self._starts[at - 1] + self._sizes[at - 1] <= start, "freed twice"
        assert at == len(self._starts) or start + nbytes <= self._starts[at], "freed twice"
        self._starts.insert(at, start)
        self._sizes.insert(at, nbytes)
        self._join(at)
        if at > 0:
            self._join(at - 1)

    def tail_bytes(self, end: int) -> int:
        """Return the size of the free range that ends at ``end``, 0 if there is none.

        >>> free = FreeList()
        >>> free.give(10, 20)
        >>> free.tail_bytes(30), free.tail_bytes(29)
        (20, 0)
        """
        if self._starts and self._starts[-1] + self._sizes[-1] == end:
            return self._sizes[-1]
        return 0

    def _join(self, at: int) -> None:
        if (
            at + 1 < len(self._starts)
            and self._starts[at] + self._sizes[at] == self._starts[at + 1]
        ):
            self._sizes[at] += self._sizes[at + 1]
            del self._starts[at + 1], self._sizes[at + 1]
