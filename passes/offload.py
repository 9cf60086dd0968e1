"""Offload: send what is made or changed on the device to its home."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from zcompile.ir import Offload as OffloadStep
from zcompile.ir import Release, Schedule, Target, Tier, given, operands
from zcompile.passes.base import OFFLOADED, STREAMED
from zcompile.passes.timeline import Timeline, next_ticket


@dataclass(frozen=True, slots=True)
class Offload:
    """Copy each new version of a value to its home, then free it.

    The copy starts right after the last kernel that writes the value.  The release waits
    for it and comes right after the last kernel that touches the value: the plan with the
    fewest bytes.  `Defer` lets the copy overlap with kernels where there is room.

    Needs:  every fetched value released where it is used last, as by `Stream`.
    Keeps:  the kernels and fetches and their order; clean values are not written back.
    Ends:   at the end every value with its home off the device is there and nowhere else.
    """

    name: ClassVar[str] = "offload"
    needs: ClassVar[frozenset[str]] = frozenset({STREAMED})
    gives: ClassVar[frozenset[str]] = frozenset({OFFLOADED})

    def __call__(self, schedule: Schedule, target: Target) -> Schedule:  # noqa: ARG002 (Pass)
        homes = {value.name: value.home for value in schedule.values}
        timeline = Timeline.of(schedule)
        first_ticket = next_ticket(schedule)
        for ticket, dirty in enumerate(_dirty_copies(schedule, timeline), first_ticket):
            name, last_write, gap = dirty
            timeline.gaps[last_write + 1].append(OffloadStep(ticket, name, homes[name]))
            moves = timeline.gaps[gap]
            if Release(name) in moves:
                moves.remove(Release(name))
            moves.append(Release(name, after=ticket))
        return schedule.with_steps(timeline.steps())


class _Dirty(NamedTuple):
    """A device copy that is newer than its home."""

    value: str
    last_write: int
    """The number of the last kernel that writes it."""
    gap: int
    """Where it is released, or will be: a value that a kernel made has no release yet."""


def _dirty_copies(schedule: Schedule, timeline: Timeline) -> tuple[_Dirty, ...]:
    there = given(schedule)
    away = {value.name for value in schedule.values if value.home is not Tier.DEVICE}
    written: dict[str, int] = {}
    touched: dict[str, int] = {}
    found: list[_Dirty] = []
    for gap, moves in enumerate(timeline.gaps):
        for move in moves:
            if isinstance(move, Release) and move.value in written:
                found.append(_Dirty(move.value, written.pop(move.value), gap))
        if gap < len(timeline.kernels):
            kernel = timeline.kernels[gap]
            written.update((name, gap) for name in kernel.writes if name in away)
            touched.update((name, gap) for name in operands(kernel))
    for name, write in written.items():
        assert name not in there, f"{name} was changed on the device and is never released"
        found.append(_Dirty(name, write, touched[name] + 1))
    return tuple(found)
