"""Stream: bring each value from its home for the kernel that needs it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from zcompile.ir import Fetch, Release, Schedule, Target, Tier, Wait, given, operands
from zcompile.passes.base import PLACED, STREAMED
from zcompile.passes.timeline import Timeline, next_ticket


@dataclass(frozen=True, slots=True)
class Stream:
    """Fetch every value just before each kernel that touches it, release it just after.

    Needs:  homes; a schedule without copies.
    Keeps:  the kernels and their order.
    Ends:   at each kernel, every value with its home off the device is on the device, and
            nothing else was fetched.  Values that kernels make lie there already.
    """

    name: ClassVar[str] = "stream"
    needs: ClassVar[frozenset[str]] = frozenset({PLACED})
    gives: ClassVar[frozenset[str]] = frozenset({STREAMED})

    def __call__(self, schedule: Schedule, target: Target) -> Schedule:  # noqa: ARG002 (Pass)
        there = given(schedule)
        homes = {
            value.name: value.home
            for value in schedule.values
            if value.home is not Tier.DEVICE and value.name in there
        }
        timeline = Timeline.of(schedule)
        tickets = count(next_ticket(schedule))
        for at, kernel in enumerate(timeline.kernels):
            for name in operands(kernel):
                if name in homes:
                    ticket = next(tickets)
                    timeline.gaps[at] += [Fetch(ticket, name, homes[name]), Wait(ticket, name)]
                    timeline.gaps[at + 1].append(Release(name))
        return schedule.with_steps(timeline.steps())
