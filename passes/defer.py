"""Defer: let copies out of the device overlap with kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zcompile.ir import Fetch, Release, Schedule, Target, operands
from zcompile.passes.base import OFFLOADED, STREAMED, check_not_negative, check_percent
from zcompile.passes.room import Room
from zcompile.passes.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Defer:
    """Put off every release that waits for an offload by up to ``kernels`` kernels.

    Right after its kernel such a release waits for the whole copy; a kernel later the copy
    is mostly done.  In an update with room for two buckets this is double buffering: the
    next bucket is fetched while the last one is still on its way out.

    Needs:  every release that waits placed as early as it can be, as by `Offload`.
    Keeps:  the kernels; the set of steps.
    Ends:   the budget kept wherever it was.
    """

    name: ClassVar[str] = "defer"
    needs: ClassVar[frozenset[str]] = frozenset({STREAMED, OFFLOADED})
    gives: ClassVar[frozenset[str]] = frozenset()

    kernels: int = 2
    spare_percent: int = 50

    def __post_init__(self) -> None:
        check_not_negative(self.name, "kernels", self.kernels)
        check_percent(self.name, self.spare_percent)

    def __call__(self, schedule: Schedule, target: Target) -> Schedule:
        nbytes = {value.name: value.nbytes for value in schedule.values}
        fetched: set[str] = set()
        timeline = Timeline.of(schedule)
        room = Room(schedule, target, self.spare_percent)
        stops = _stops(timeline)
        gaps: list[list[Release]] = [[] for _ in timeline.gaps]
        for gap, move in timeline.moves():
            if isinstance(move, Fetch):
                fetched.add(move.value)
            if not isinstance(move, Release):
                continue
            end = gap if move.after is None else min(gap + self.kernels, len(timeline.kernels))
            take = room.take_arena if move.value in fetched else room.take_ordinary
            at = gap
            while at < end and move.value not in stops[at] and take(at, at + 1, nbytes[move.value]):
                at += 1
            gaps[at].append(move)
            fetched.discard(move.value)
        for gap, releases in enumerate(gaps):
            others = [move for move in timeline.gaps[gap] if not isinstance(move, Release)]
            timeline.gaps[gap] = [*releases, *others]
        return schedule.with_steps(timeline.steps())


def _stops(timeline: Timeline) -> list[set[str]]:
    """Return for each gap the values whose next life begins there or at the kernel after it."""
    stops = [{move.value for move in moves if isinstance(move, Fetch)} for moves in timeline.gaps]
    for gap, kernel in enumerate(timeline.kernels):
        stops[gap].update(operands(kernel))
    return stops
