"""The lean plan: every value on the device for exactly the kernels that need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zcompile.ir import (
    KERNELS,
    MANAGED_ROLES,
    MOVABLE_ROLES,
    Schedule,
    Target,
    Tier,
    given,
    operands,
    page_aligned,
)
from zcompile.passes.offload import Offload
from zcompile.passes.pack import Pack
from zcompile.passes.placement import with_homes
from zcompile.passes.stream import Stream
from zcompile.passes.vacate import Vacate

Integers = NDArray[np.int64]


def lean_plan(schedule: Schedule, target: Target) -> Schedule:
    """Return the plan of ``schedule`` that holds the fewest bytes, given ``target.homes``.

    It is what the pipeline gives without its optional passes, with the arena vacated.
    """
    streamed = Stream()(with_homes(schedule, target.homes), target)
    return Pack()(Vacate()(Offload()(streamed, target), target), target)


def lean_peak(schedule: Schedule, target: Target) -> int:
    """Return the device bytes that the lean plan of ``schedule`` needs.

    Offsets make no difference to them, so packing need not be tried.
    """
    return target.reserved_bytes + LeanBytes(schedule).at(target.homes).vacated


def static_lean_peak(schedule: Schedule, target: Target) -> int:
    """Return what `lean_peak` does, for the same steps with a static arena.

    No copy is held past its kernel, so packing leaves no holes and need not be tried.
    """
    return target.reserved_bytes + LeanBytes(schedule).at(target.homes).static


@dataclass(frozen=True, slots=True)
class LeanPeaks:
    """The most that a lean plan holds: with an arena that is vacated, and with a static one."""

    vacated: int
    static: int


class LeanBytes:
    """What the lean plans of one captured schedule hold, without making them.

    A copy from home is there for the kernel that needs it, in the arena.  What a kernel makes
    is ordinary memory: to its last use, and where its home is elsewhere, until it has left after
    that.  It counts to the bytes ``before`` a kernel, those ``after`` it, or both.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.num_values = len(schedule.values)
        kernels = [step for step in schedule.steps if isinstance(step, KERNELS)]
        self._values = schedule.values
        self._transient = np.array([each.transient_bytes for each in kernels], np.int64)
        self._index = {value.name: at for at, value in enumerate(schedule.values)}
        touches = [(at, self._index[name]) for at, k in enumerate(kernels) for name in operands(k)]
        self._touching = np.array([at for at, _ in touches], np.int64)
        self._touched = np.array([value for _, value in touches], np.int64)
        self._nbytes = np.array([each.nbytes for each in schedule.values], np.int64)
        self._aligned = np.array([page_aligned(each.nbytes) for each in schedule.values], np.int64)
        num_values, num_kernels = self.num_values, len(kernels)
        there = given(schedule)
        self._given = np.array([each.name in there for each in schedule.values], bool)
        self._last = np.full(num_values, -1, np.int64)
        np.maximum.at(self._last, self._touched, self._touching)
        self._made = np.full(num_values, num_kernels, np.int64)
        for at in reversed(range(num_kernels)):
            for name in kernels[at].writes:
                self._made[self._index[name]] = at
        outputs = frozenset(schedule.outputs)
        kept = (each.held or each.name in outputs for each in schedule.values)
        # What no kernel touches never becomes free.
        self._kept = np.fromiter(kept, bool, num_values) | (self._last < 0)
        self._lasting = np.array([each.role in MANAGED_ROLES for each in schedule.values], bool)

    def at(self, homes: Mapping[str, Tier]) -> LeanPeaks:
        """Return the peaks with movable values at ``homes``; others stay where they are."""
        return self.away(self._away_from(homes))

    def number(self, name: str) -> int | None:
        """Return the number of the value called ``name``; ``None`` if there is none."""
        return self._index.get(name)

    def is_given(self, number: int) -> bool:
        """Say whether the value of that number is there before the first kernel."""
        return bool(self._given[number])

    def away(self, is_away: NDArray[np.bool_]) -> LeanPeaks:
        """Return the peaks with those values at home off the device of which ``is_away`` says so.

        It has an entry for each value of the schedule.
        """
        if not len(self._transient):
            return LeanPeaks(0, 0)
        ordinary, arena = self._ordinary(is_away), self._arena(is_away)
        return LeanPeaks(int((ordinary + arena).max()), int(ordinary.max()) + int(arena.max()))

    def _away_from(self, homes: Mapping[str, Tier]) -> NDArray[np.bool_]:
        away = (
            homes.get(each.name, each.home) is not Tier.DEVICE and each.role in MOVABLE_ROLES
            for each in self._values
        )
        return np.fromiter(away, bool, len(self._values))

    def _arena(self, is_away: NDArray[np.bool_]) -> Integers:
        copied = np.where(is_away & self._given, self._aligned, 0)
        return self._summed(self._touching, copied[self._touched])

    def _ordinary(self, is_away: NDArray[np.bool_]) -> Integers:
        """Return what each kernel holds outside the arena at its worst moment."""
        num_kernels = len(self._transient)
        there = ~(is_away & self._given)
        nbytes = np.where(there, self._nbytes, 0)
        # A value at home on the device outlives the schedule, unless it is only saved.
        kept = ~is_away & (self._kept | self._lasting)
        first = np.where(self._given, 0, self._made)
        begins_before = np.where(self._given, 0, np.minimum(self._made + 1, num_kernels))
        ends_before = np.where(kept, num_kernels, self._last + 1)
        leaves_later = is_away & ~self._given
        ends_after = np.where(kept, num_kernels, self._last + leaves_later)
        before = self._held(begins_before, np.maximum(ends_before, begins_before), nbytes)
        after = self._held(first, np.maximum(ends_after, first), nbytes)
        most: Integers = np.maximum(before + self._transient, after)
        return most

    def _held(self, first: Integers, end: Integers, nbytes: Integers) -> Integers:
        changes = np.zeros(len(self._transient) + 1, np.int64)
        np.add.at(changes, first, nbytes)
        np.subtract.at(changes, end, nbytes)
        return changes.cumsum()[:-1]

    def _summed(self, at: Integers, nbytes: Integers) -> Integers:
        found = np.zeros(len(self._transient), np.int64)
        np.add.at(found, at, nbytes)
        return found
