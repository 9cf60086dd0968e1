"""A row of numbers that can be raised and looked at a range at a time."""

from __future__ import annotations

from collections.abc import Sequence


class RangeMax:
    """Numbers ``0 .. n-1``: add to a range, or ask for its largest, in O(log n).

    A segment tree without push-down: the number of a leaf is the sum of ``_add`` from the
    root down to it, and ``_max`` of a node is the largest number below it, not counting
    what was added above it.

    >>> row = RangeMax([1, 5, 2])
    >>> row.add(1, 3, 10)
    >>> row.largest(0, 3), row.largest(2, 3), row.largest(0, 1)
    (15, 12, 1)
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._leaves = 1
        while self._leaves < len(numbers):
            self._leaves *= 2
        self._add = [0] * (2 * self._leaves)
        self._max = [0] * (2 * self._leaves)
        self._max[self._leaves : self._leaves + len(numbers)] = numbers
        for node in range(self._leaves - 1, 0, -1):
            self._pull(node)

    def add(self, first: int, end: int, amount: int) -> None:
        """Add ``amount`` to the numbers ``first .. end-1``."""
        for node in self._cover(first, end):
            self._add[node] += amount
            self._max[node] += amount
        for edge in (first, end - 1) if first < end else ():
            node = (edge + self._leaves) // 2
            while node:
                self._pull(node)
                node //= 2

    def largest(self, first: int, end: int) -> int:
        """Return the largest of the numbers ``first .. end-1``, of which there must be one."""
        return max(self._max[node] + self._above(node) for node in self._cover(first, end))

    def _pull(self, node: int) -> None:
        self._max[node] = max(self._max[2 * node], self._max[2 * node + 1]) + self._add[node]

    def _above(self, node: int) -> int:
        total = 0
        while node > 1:
            node //= 2
            total += self._add[node]
        return total

    def _cover(self, first: int, end: int) -> list[int]:
        """Return the fewest nodes whose leaves are ``first .. end-1``."""
        low, high = first + self._leaves, end + self._leaves
        found: list[int] = []
        while low < high:
            if low % 2:
                found.append(low)
                low += 1
            if high % 2:
                high -= 1
                found.append(high)
            low, high = low // 2, high // 2
        return found
