"""A row of numbers that can be raised and looked at a range at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class RangeMax:
    """Numbers ``0 .. n-1``: add to a range, ask for its largest, or where a limit is passed.

    A plain array: a range of thousands is passed over in less time than Python takes for a few
    nodes of a tree, and plans hold a copy for tens or hundreds of kernels, not for all.

    >>> row = RangeMax([1, 5, 2])
    >>> row.add(1, 3, 10)
    >>> row.largest(0, 3), row.largest(2, 3), row.largest(0, 1)
    (15, 12, 1)
    >>> row.after_last_above(12, 0, 3), row.first_above(12, 0, 3), row.first_above(99, 0, 3)
    (2, 1, 3)
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._row = np.array(numbers, np.int64)

    def add(self, first: int, end: int, amount: int) -> None:
        """Add ``amount`` to the numbers ``first .. end-1``."""
        self._row[first:end] += amount

    def largest(self, first: int, end: int) -> int:
        """Return the largest of the numbers ``first .. end-1``, of which there must be one."""
        if end - first == 1:  # as passes ask that go from kernel to kernel
            return int(self._row[first])
        return int(self._row[first:end].max())

    def after_last_above(self, limit: int, first: int, end: int) -> int:
        """Return where the numbers to ``end`` begin that are at most ``limit``, at least ``first``.

        Looks at twice as many each time, so it takes no longer than what it finds is long.
        """
        length = _CHUNK
        right = end
        while right > first:
            left = max(first, right - length)
            above = np.flatnonzero(self._row[left:right] > limit)
            if above.size:
                return left + int(above[-1]) + 1
            right, length = left, 2 * length
        return first

    def first_above(self, limit: int, first: int, end: int) -> int:
        """Return the first from ``first`` on that is more than ``limit``; ``end`` if none is."""
        length = _CHUNK
        left = first
        while left < end:
            right = min(end, left + length)
            above = np.flatnonzero(self._row[left:right] > limit)
            if above.size:
                return left + int(above[0])
            left, length = right, 2 * length
        return end


_CHUNK = 64
"""How many numbers are looked at first."""
