"""Room: how many more device bytes a plan may hold, kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass

from zcompile.ir import Compute, Schedule, Target, Update, footprint, page_aligned
from zcompile.passes.range_max import RangeMax

UNLIMITED_BYTES = 1 << 62
"""What is spare without a budget; more than any machine has."""


@dataclass(slots=True)
class _Part:
    """One of the two parts of the device memory: what it holds at each kernel, and at most."""

    held: RangeMax
    peak_bytes: int


class Room:
    """The device bytes that a pass may still spend; it lives in one call of that pass.

    The arena is static: it is as large as its fullest moment, all the time.  So what counts
    is the peak of the arena plus the peak of ordinary memory, whenever they are.  Holding
    more below a peak is free; raising one takes from what is spare.

    Note [Gaps hold no more than kernels]: moves in a gap free before they fetch
    (`zcompile.passes.timeline`), so no step between two kernels holds more than the larger
    of the two, and it is enough to look at kernels.
    """

    def __init__(self, schedule: Schedule, target: Target, spare_percent: int) -> None:
        held = footprint(schedule)
        kernels = [
            at for at, step in enumerate(schedule.steps) if isinstance(step, Compute | Update)
        ]
        self._arena = _Part(
            RangeMax([held.arena[at] for at in kernels]), max(held.arena, default=0)
        )
        self._ordinary = _Part(
            RangeMax([held.ordinary[at] for at in kernels]), max(held.ordinary, default=0)
        )
        self._spare_bytes = UNLIMITED_BYTES
        if target.device_budget is not None:
            peaks = self._arena.peak_bytes + self._ordinary.peak_bytes
            spare = target.device_budget - target.reserved_bytes - peaks
            self._spare_bytes = max(0, spare * spare_percent // 100)

    def take_arena(self, first: int, end: int, nbytes: int) -> bool:
        """Hold a value of ``nbytes`` in the arena at kernels ``first .. end-1``, if it fits."""
        return self._take(self._arena, first, end, page_aligned(nbytes))

    def take_ordinary(self, first: int, end: int, nbytes: int) -> bool:
        """Hold ``nbytes`` of ordinary memory at kernels ``first .. end-1``, if they fit."""
        return self._take(self._ordinary, first, end, nbytes)

    def _take(self, part: _Part, first: int, end: int, nbytes: int) -> bool:
        if first >= end:
            return True
        rise = max(0, part.held.largest(first, end) + nbytes - part.peak_bytes)
        if rise > self._spare_bytes:
            return False
        part.held.add(first, end, nbytes)
        part.peak_bytes += rise
        self._spare_bytes -= rise
        return True
