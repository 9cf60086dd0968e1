"""Which saved values backward makes again: none if there is room, and else the least work.

Note [Recompute or move].  Where the machine is not known, saved values stay as long as all else can
leave.  When they have to go, those go first that take less to make again than to move there and
back, on a machine of no name (`zcompile.passes.repeatable`).  If that is not enough they all move,
and if that is not enough or there is nowhere to move to, as little as need be is made again: the
limit of what is made at once is the lowest under which a plan fits, and of its units so many
are taken, the cheapest for each byte first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from zcompile.ir import Schedule
from zcompile.passes.recompute import apply
from zcompile.passes.repeatable import Seconds, Unit, limits, moving_seconds, taken, units

Way = Literal["auto", "never", "always"]
"""What the option ``recompute`` can be."""

Graphs = Mapping[str, Schedule]


@dataclass(frozen=True, slots=True)
class Again:
    """What backward makes again, unit by unit; printing it says why."""

    units: tuple[Unit, ...] = ()
    reason: str = ""

    @property
    def dropped(self) -> frozenset[str]:
        """The saved values that nobody keeps."""
        return frozenset(name for unit in self.units for name in unit.saved)

    def applied(self, graphs: Graphs) -> dict[str, Schedule]:
        """Return ``graphs``, as captured, with what runs again."""
        return apply(graphs, self.dropped)

    def reasons(self) -> Iterator[tuple[str, str]]:
        """Yield each value that is made again, and why."""
        for unit in self.units:
            others = unit.num_kernels - 1
            with_them = f" and {others} more" if others else ""
            for name in unit.saved:
                yield (
                    name,
                    f"backward makes it again, by {unit.graph}/{unit.kernel}{with_them}: "
                    f"{unit.seconds * 1000:.3g} ms for {unit.nbytes} B; {self.reason}",
                )


NOTHING = Again()


class Recomputing:
    """The ways to make saved values of some graphs, as captured, again.

    ``pinned`` are saved values that the user wants somewhere: they are kept.
    """

    def __init__(self, graphs: Graphs, seconds: Seconds, pinned: frozenset[str]) -> None:
        self._graphs = graphs
        self._units = units(graphs, seconds, pinned)

    def __bool__(self) -> bool:
        return bool(self._units)

    def cheaper(self) -> Again:
        """Return what takes less to make again than to move: in chains as short as can be."""
        found = [unit for unit in self._units if unit.seconds < moving_seconds(unit.nbytes)]
        reason = "that takes less than moving it there and back"
        return Again(taken(found, _shortest(found)), reason)

    def to_compare(self) -> tuple[Again, ...]:
        """Return what is worth timing: all that can be in short chains, and the cheaper half."""
        found = taken(self._units, _shortest(self._units))
        reason = "an iteration takes less time so"
        halves = (found, found[: len(found) // 2])
        return tuple(Again(each, reason) for each in halves if each)

    def fullest(self) -> tuple[Again, ...]:
        """Return all that can be made again under each limit, the lowest limit first."""
        reason = "device_budget has no room for it until backward"
        found = [taken(self._units, limit) for limit in limits(self._units)]
        return tuple(Again(each, reason) for each in dict.fromkeys(found))

    def least(self, fits: Callable[[Again], bool]) -> Again | None:
        """Return the least that ``fits``, ``None`` if nothing: see Note [Recompute or move]."""
        for full in self.fullest():
            if fits(full):
                return _least_of(full, fits)
        return None


def _shortest(found: Sequence[Unit]) -> int:
    return max((unit.nbytes for unit in found), default=0)


def _least_of(full: Again, fits: Callable[[Again], bool]) -> Again:
    """Return the fewest units of ``full``, in order, that fit; all of them do."""
    low, high = 0, len(full.units)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(Again(full.units[:middle], full.reason)):
            high = middle
        else:
            low = middle
    return Again(full.units[:high], full.reason)
