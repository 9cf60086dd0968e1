"""Live intervals: when the storage of each value is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zcompile.ir import KERNELS, Schedule, operands


@dataclass(frozen=True, slots=True)
class Interval:
    """Steps ``first`` to ``last``, both inclusive."""

    first: int
    last: int

    def overlaps(self, other: Interval) -> bool:
        """Say whether some step lies in both.

        >>> Interval(0, 3).overlaps(Interval(3, 4)), Interval(0, 2).overlaps(Interval(3, 4))
        (True, False)
        """
        return self.first <= other.last and other.first <= self.last


def live_intervals(schedule: Schedule) -> Mapping[str, Interval]:
    """Return the live interval of every value that some kernel touches.

    A value is one storage and views of it are reads of it, so the interval ends where the
    last view is read.  Copies are left out: they follow from liveness, not the reverse.
    """
    found: dict[str, Interval] = {}
    for at, step in enumerate(schedule.steps):
        if isinstance(step, KERNELS):
            for name in operands(step):
                first = found[name].first if name in found else at
                found[name] = Interval(first, at)
    return found
