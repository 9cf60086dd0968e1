"""Prefetch: start each fetch earlier, so that the copy hides behind kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zcompile.ir import Fetch, Release, Schedule, Target, Tier, Wait
from zcompile.passes.base import OFFLOADED, STREAMED, check_not_negative, check_percent
from zcompile.passes.room import Room
from zcompile.passes.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Hoist every fetch past kernels, away from its wait, as far as all limits allow.

    At most ``distance_kernels`` kernels lie between a fetch and its wait, and where
    ``distance_bytes`` or more are on the device ahead of need nothing is added to them.  A
    fetch does not overtake another from the same tier: they share a queue, and the one that
    is needed first would land last.

    Needs:  a plan that keeps its copies as `Stream` and `Offload` do.
    Keeps:  the kernels; the set of steps; the order of fetches from one tier.
    Ends:   the budget kept wherever it was.
    """

    name: ClassVar[str] = "prefetch"
    needs: ClassVar[frozenset[str]] = frozenset({STREAMED, OFFLOADED})
    gives: ClassVar[frozenset[str]] = frozenset()

    distance_kernels: int = 8
    distance_bytes: int = 64 << 20
    spare_percent: int = 100

    def __post_init__(self) -> None:
        check_not_negative(self.name, "distance_kernels", self.distance_kernels)
        check_not_negative(self.name, "distance_bytes", self.distance_bytes)
        check_percent(self.name, self.spare_percent)

    def __call__(self, schedule: Schedule, target: Target) -> Schedule:
        timeline = Timeline.of(schedule)
        hoist = _Hoist(self, schedule, target, timeline)
        gaps: list[list[Fetch]] = [[] for _ in timeline.gaps]
        for gap, move in timeline.moves():
            if isinstance(move, Fetch):
                gaps[hoist(gap, move)].append(move)
            elif isinstance(move, Release):
                hoist.freed[move.value] = gap
        for gap, fetches in enumerate(gaps):
            others = [move for move in timeline.gaps[gap] if not isinstance(move, Fetch)]
            timeline.gaps[gap] = [*others, *fetches]
        return schedule.with_steps(timeline.steps())


class _Hoist:
    """Finds the gap for each fetch, called with the fetches in the order of the schedule."""

    def __init__(
        self, limits: Prefetch, schedule: Schedule, target: Target, timeline: Timeline
    ) -> None:
        self._limits = limits
        self._room = Room(schedule, target, limits.spare_percent)
        self._nbytes = {value.name: value.nbytes for value in schedule.values}
        self._waits = {move.ticket: gap for gap, move in timeline.moves() if isinstance(move, Wait)}
        self._ahead = [0] * len(timeline.kernels)
        self._last: dict[Tier, int] = {}
        self.freed: dict[str, int] = {}
        """By value: the gap of its last release, before which it must not be fetched again."""

    def __call__(self, gap: int, fetch: Fetch) -> int:
        nbytes = self._nbytes[fetch.value]
        first = max(
            self._waits[fetch.ticket] - self._limits.distance_kernels,
            self._last.get(fetch.src, 0),
            self.freed.get(fetch.value, 0),
        )
        at = gap
        while (
            at > first
            and self._ahead[at - 1] < self._limits.distance_bytes
            and self._room.take_arena(at - 1, at, nbytes)
        ):
            at -= 1
            self._ahead[at] += nbytes
        self._last[fetch.src] = at
        return at
