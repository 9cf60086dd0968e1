"""Keep: leave a value on the device between two kernels that both need it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zcompile.ir import Fetch, Release, Schedule, Target, Wait
from zcompile.passes.base import OFFLOADED, STREAMED, check_percent
from zcompile.passes.room import Room
from zcompile.passes.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Keep:
    """Take out a release and the fetch that follows it, shortest gap first.

    ``spare_percent`` of the spare device bytes may be spent; the rest is for the passes
    that hide the copies that remain.  Dirty copies are left alone: they travel anyway.

    Needs:  a plan that holds as little as it can, as by `Stream` and `Offload`.
    Keeps:  the kernels; every other move.
    Ends:   no more fetches than before, and the budget kept wherever it was.
    """

    name: ClassVar[str] = "keep"
    needs: ClassVar[frozenset[str]] = frozenset({STREAMED, OFFLOADED})
    gives: ClassVar[frozenset[str]] = frozenset()

    spare_percent: int = 50

    def __post_init__(self) -> None:
        check_percent(self.name, self.spare_percent)

    def __call__(self, schedule: Schedule, target: Target) -> Schedule:
        nbytes = {value.name: value.nbytes for value in schedule.values}
        timeline = Timeline.of(schedule)
        pauses = _pauses(timeline)
        if not pauses:
            return schedule
        room = Room(schedule, target, self.spare_percent)
        dropped_fetches: set[int] = set()
        dropped_releases: set[tuple[int, str]] = set()
        for pause in sorted(pauses, key=lambda pause: pause.fetched - pause.released):
            if room.take_arena(pause.released, pause.fetched, nbytes[pause.value]):
                dropped_fetches.add(pause.ticket)
                dropped_releases.add((pause.released, pause.value))
        for gap, moves in enumerate(timeline.gaps):
            timeline.gaps[gap] = [
                move
                for move in moves
                if not (isinstance(move, Fetch | Wait) and move.ticket in dropped_fetches)
                and not (isinstance(move, Release) and (gap, move.value) in dropped_releases)
            ]
        return schedule.with_steps(timeline.steps())


class _Pause(NamedTuple):
    """A value that is away from gap ``released`` to gap ``fetched``, though not for long."""

    value: str
    released: int
    fetched: int
    ticket: int
    """The ticket of the fetch that ends the pause."""


def _pauses(timeline: Timeline) -> list[_Pause]:
    clean: dict[str, int] = {}
    found: list[_Pause] = []
    for gap, move in timeline.moves():
        match move:
            case Release(value, after):
                clean.pop(value, None)
                if after is None:
                    clean[value] = gap
            case Fetch(ticket, value):
                if value in clean:
                    found.append(_Pause(value, clean.pop(value), gap, ticket))
            case _:
                pass
    return found
