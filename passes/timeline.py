"""A schedule as its kernels and the gaps between them.

Planning passes may act only between kernels, so they think in gaps: gap ``k`` lies before
kernel ``k``, and one more gap follows the last kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from zcompile.ir import KERNELS, Fetch, Kernel, Offload, Release, Schedule, Step, Wait

Move = Fetch | Wait | Offload | Release

_RANKS: Mapping[type[Step], int] = {Offload: 0, Release: 1, Fetch: 2, Wait: 3}
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
        moves: list[Move] = []
        gaps = [moves]
        for step in schedule.steps:
            if isinstance(step, KERNELS):
                kernels.append(step)
                moves = []
                gaps.append(moves)
            else:
                moves.append(step)
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
        for own, kernel in zip_longest(self.gaps, self.kernels):
            found.extend(sorted(own, key=_rank) if len(own) > 1 else own)
            if kernel is not None:
                found.append(kernel)
        return tuple(found)


def _rank(move: Step) -> int:
    return _RANKS[type(move)]


def next_ticket(schedule: Schedule) -> int:
    """Return the smallest ticket above all that ``schedule`` uses."""
    used = (step.ticket for step in schedule.steps if isinstance(step, Fetch | Offload))
    return max(used, default=-1) + 1
