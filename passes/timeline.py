"""A schedule as its kernels and the gaps between them.

Planning passes may act only between kernels, so they think in gaps: gap ``k`` lies before
kernel ``k``, and one more gap follows the last kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zcompile.ir import (
    Compute,
    Fetch,
    Kernel,
    Offload,
    Release,
    Schedule,
    Step,
    Update,
    Wait,
)

Move = Fetch | Wait | Offload | Release

_ORDER: tuple[type[Move], ...] = (Offload, Release, Fetch, Wait)
"""The order of moves in a gap.

A copy out starts as soon as its kernel is done; what is freed is freed before anything is
fetched, so a gap never holds more than the larger of the two kernels around it; and all
fetches of a gap are under way before the first is waited for.
"""


@dataclass(slots=True)
class Timeline:
    """Kernels in order, and the moves in each of the ``len(kernels) + 1`` gaps."""

    kernels: tuple[Kernel, ...]
    gaps: list[list[Move]]

    @classmethod
    def of(cls, schedule: Schedule) -> Timeline:
        kernels: list[Kernel] = []
        gaps: list[list[Move]] = [[]]
        for step in schedule.steps:
            if isinstance(step, Compute | Update):
                kernels.append(step)
                gaps.append([])
            else:
                gaps[-1].append(step)
        return cls(tuple(kernels), gaps)

    def moves(self) -> Iterator[tuple[int, Move]]:
        """Yield every move with the number of its gap, in the order of the schedule."""
        for gap, moves in enumerate(self.gaps):
            for move in moves:
                yield gap, move

    def steps(self) -> tuple[Step, ...]:
        """Return the steps of the schedule, each gap in its fixed order.

        Moves of one kind keep the order they have, so a queue of copies keeps its own.
        """
        found: list[Step] = []
        for gap, moves in enumerate(self.gaps):
            found.extend(sorted(moves, key=lambda move: _ORDER.index(type(move))))
            if gap < len(self.kernels):
                found.append(self.kernels[gap])
        return tuple(found)


def next_ticket(schedule: Schedule) -> int:
    """Return the smallest ticket above all that ``schedule`` uses."""
    used = (step.ticket for step in schedule.steps if isinstance(step, Fetch | Offload))
    return max(used, default=-1) + 1
