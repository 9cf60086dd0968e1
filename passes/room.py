"""Room: how many more device bytes a plan may hold, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zcompile.ir import KERNELS, Footprint, Schedule, Target, footprint, page_aligned
from zcompile.passes.range_max import RangeMax

UNLIMITED_BYTES = 1 << 62
"""What is spare without a budget; more than any machine has."""


@dataclass(slots=True)
class _Part:
    """A part of the device memory: what it holds at each kernel, and at most."""

    held: RangeMax
    peak_bytes: int

    @classmethod
    def at(cls, kernels: Sequence[int], held: Sequence[int]) -> _Part:
        """Return the part that holds ``held`` step by step, of which ``kernels`` are kernels."""
        return cls(RangeMax([held[at] for at in kernels]), max(held, default=0))


class Room:
    """The device bytes that a pass may still spend; it lives in one call of that pass.

    A static arena is as large as its fullest moment, all the time.  So what counts is the
    peak of the arena plus the peak of ordinary memory, whenever they are.  Holding more below
    a peak is free; raising one takes from what is spare.  Where the schedule vacates, the two
    are one part with one peak.

    Note [Gaps hold no more than kernels]: moves in a gap free before they fetch
    (`zcompile.passes.timeline`), so no step between two kernels holds more than the larger
    of the two, and it is enough to look at kernels.
    """

    def __init__(
        self,
        schedule: Schedule,
        target: Target,
        spare_percent: int,
        held: Footprint | None = None,
    ) -> None:
        """Look at what ``schedule`` holds: its footprint, which may be given as ``held``."""
        held = held or footprint(schedule)
        kernels = [at for at, step in enumerate(schedule.steps) if isinstance(step, KERNELS)]
        if schedule.vacates:
            both = [a + b for a, b in zip(held.arena, held.ordinary, strict=True)]
            self._arena = self._ordinary = _Part.at(kernels, both)
            peaks = self._arena.peak_bytes
        else:
            self._arena = _Part.at(kernels, held.arena)
            self._ordinary = _Part.at(kernels, held.ordinary)
            peaks = self._arena.peak_bytes + self._ordinary.peak_bytes
        self._spare_bytes = UNLIMITED_BYTES
        if target.device_budget is not None:
            spare = target.device_budget - target.reserved_bytes - peaks
            self._spare_bytes = max(0, spare * spare_percent // 100)

    def take_arena(self, first: int, end: int, nbytes: int) -> bool:
        """Hold a value of ``nbytes`` in the arena at kernels ``first .. end-1``, if it fits."""
        return self._take(self._arena, first, end, page_aligned(nbytes))

    def take_ordinary(self, first: int, end: int, nbytes: int) -> bool:
        """Hold ``nbytes`` of ordinary memory at kernels ``first .. end-1``, if they fit."""
        return self._take(self._ordinary, first, end, nbytes)

    def earliest_arena(self, first: int, end: int, nbytes: int) -> int:
        """Return the first kernel from ``first`` on from which `take_arena` works to ``end``."""
        limit = self._limit(self._arena, page_aligned(nbytes))
        return self._arena.held.after_last_above(limit, first, end)

    def latest_arena(self, first: int, end: int, nbytes: int) -> int:
        """Return the last end, up to ``end``, to which `take_arena` works from ``first``."""
        limit = self._limit(self._arena, page_aligned(nbytes))
        return self._arena.held.first_above(limit, first, end)

    def latest_ordinary(self, first: int, end: int, nbytes: int) -> int:
        """Return the last end, up to ``end``, to which `take_ordinary` works from ``first``."""
        return self._ordinary.held.first_above(self._limit(self._ordinary, nbytes), first, end)

    def _limit(self, part: _Part, nbytes: int) -> int:
        """Return what a kernel may hold at most for ``nbytes`` more to fit beside it."""
        return part.peak_bytes + self._spare_bytes - nbytes

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
