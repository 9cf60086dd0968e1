"""Repeatable: which saved values can be made again instead of kept, and which first.

Note [Units].  A unit is one kernel of forward that hands saved values on, and what has to run to
make them again where all other saved values are there: the kernel itself, and those that made
what it reads and nobody has kept.  All of these must be kernels that repeat.

Note [What is made at once].  If a unit reads saved values that are dropped too, their units run
first, and so on.  Such a chain ends at what is kept, and what all of its units make is there at
once, at the first use of the last of them.  So units are taken in the order of the seconds that
they cost for each byte they spare, as long as no chain makes more than a limit at once.  A low
limit gives short chains and keeps more; a high one the reverse.  What the chains then need is
measured on the plans, not foretold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zcompile.ir import Cost, Role, Schedule
from zcompile.passes.recompute import Pair, Reruns, pairs

MAX_RERUNS = 32
"""A unit of more kernels than this is none: making its values again would cost far too much."""

NUM_LIMITS = 12
"""How many limits are tried: see Note [What is made at once]."""

LIMIT_STEP = 1.6
"""Each of them is so many times the one before."""

FLOPS_PER_S = 5e10
MEMORY_BYTES_PER_S = 1e10
MOVED_BYTES_PER_S = 2e9
"""A machine to weigh recomputing against moving by where none is named: a core and a disk."""

Seconds = Mapping[str, Mapping[str, float]]
"""By graph and kernel."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A kernel of forward whose saved values can be made again: see Note [Units].

    ``reads`` are the saved values that have to be there for that.  ``seconds`` is what the
    kernels take that have to run, ``work`` in words.
    """

    graph: str
    kernel: str
    saved: tuple[str, ...]
    nbytes: int
    reads: frozenset[str]
    seconds: float
    num_kernels: int

    @property
    def seconds_per_byte(self) -> float:
        return self.seconds / max(1, self.nbytes)


def nominal_seconds(costs: Mapping[str, Mapping[str, Cost]]) -> Seconds:
    """Return what kernels would take on a machine of no name, by their flops and bytes."""
    return {
        graph: {
            kernel: sum(
                max(each.flops / FLOPS_PER_S, each.nbytes / MEMORY_BYTES_PER_S) for each in cost
            )
            for kernel, cost in kernels.items()
        }
        for graph, kernels in costs.items()
    }


def moving_seconds(nbytes: int) -> float:
    """Return what sending so many bytes away and bringing them back takes on such a machine."""
    return 2 * nbytes / MOVED_BYTES_PER_S


def units(
    graphs: Mapping[str, Schedule], seconds: Seconds, pinned: Collection[str] = ()
) -> tuple[Unit, ...]:
    """Return the units of all ``graphs``, as captured, the cheapest for each byte first.

    What is ``pinned`` is kept.  A kernel of no known time counts by the bytes that it touches.
    """
    found = [
        unit
        for pair in pairs(graphs.values())
        for unit in _units(pair, seconds.get(pair.forward.name, {}), frozenset(pinned))
    ]
    return tuple(sorted(found, key=lambda unit: unit.seconds_per_byte))


def _units(pair: Pair, seconds: Mapping[str, float], pinned: frozenset[str]) -> Iterator[Unit]:
    reruns = Reruns(pair)
    droppable = _droppable(pair, reruns) - pinned
    repeats = _repeating(reruns)
    for number, kernel in enumerate(reruns.kernels):
        saved = tuple(name for name in kernel.writes if name in droppable)
        if not saved or not repeats[number]:
            continue
        closure = _closure(reruns, number)
        if len(closure) > MAX_RERUNS:
            continue
        reads = {name for at in closure for name in reruns.kernels[at].reads}
        yield Unit(
            graph=pair.forward.name,
            kernel=kernel.kernel,
            saved=saved,
            nbytes=sum(reruns.values[name].nbytes for name in saved),
            reads=frozenset(name for name in reads & droppable if name not in saved),
            seconds=sum(_took(reruns, at, seconds) for at in closure),
            num_kernels=len(closure),
        )


def _droppable(pair: Pair, reruns: Reruns) -> frozenset[str]:
    """Return the saved values that forward makes and some kernel of backward reads."""
    read = {name for step in pair.backward.steps for name in getattr(step, "reads", ())}
    return frozenset(
        name
        for name in pair.forward.outputs
        if reruns.values[name].role is Role.SAVED
        and name in reruns.made_by
        and name in reruns.known
        and name in read
    )


def _repeating(reruns: Reruns) -> list[bool]:
    """Return by kernel whether it repeats, and so do those that make what nobody keeps for it."""
    found: list[bool] = []
    for kernel in reruns.kernels:
        before = (reruns.made_by[name] for name in kernel.reads if reruns.is_lost(name))
        found.append(kernel.repeats and all(found[at] for at in before))
    return found


def _closure(reruns: Reruns, number: int) -> tuple[int, ...]:
    """Return the kernels of the unit of kernel ``number``, itself included, in order."""
    found: set[int] = set()
    wanted = [number]
    while wanted and len(found) <= MAX_RERUNS:
        at = wanted.pop()
        if at not in found:
            found.add(at)
            reads = reruns.kernels[at].reads
            wanted += (reruns.made_by[name] for name in reads if reruns.is_lost(name))
    return tuple(sorted(found))


def _took(reruns: Reruns, at: int, seconds: Mapping[str, float]) -> float:
    kernel = reruns.kernels[at]
    known = seconds.get(kernel.kernel)
    if known is not None:
        return known
    touched = sum(reruns.values[name].nbytes for name in {*kernel.reads, *kernel.writes})
    return touched / MEMORY_BYTES_PER_S


def limits(found: Sequence[Unit]) -> tuple[int, ...]:
    """Return limits of what is made at once, from the largest unit to more than all together."""
    total = sum(unit.nbytes for unit in found)
    limit = float(max((unit.nbytes for unit in found), default=0))
    values: list[int] = []
    while found and len(values) < NUM_LIMITS:
        values.append(int(limit))
        if limit >= total:
            break
        limit *= LIMIT_STEP
    return tuple(values)


def taken(found: Sequence[Unit], limit: int) -> tuple[Unit, ...]:
    """Return those of ``found``, in their order, whose chains make at most ``limit`` bytes at once.

    See Note [What is made at once].
    """
    chains = _Chains(found)
    return tuple(unit for at, unit in enumerate(found) if chains.take(at, limit))


class _Chains:
    """Which units were taken, and how many bytes are made at once with each."""

    def __init__(self, found: Sequence[Unit]) -> None:
        self._units = found
        self._parent = list(range(len(found)))
        self._nbytes = [0] * len(found)
        maker = {name: at for at, unit in enumerate(found) for name in unit.saved}
        self._near: list[set[int]] = [set() for _ in found]
        for at, unit in enumerate(found):
            for name in unit.reads:
                if name in maker:
                    self._near[at].add(maker[name])
                    self._near[maker[name]].add(at)
        self._taken = [False] * len(found)

    def take(self, at: int, limit: int) -> bool:
        """Take unit ``at`` if its chain stays within ``limit``; say whether it does."""
        chains = {self._find(near) for near in self._near[at] if self._taken[near]}
        nbytes = self._units[at].nbytes + sum(self._nbytes[each] for each in chains)
        if nbytes > limit:
            return False
        self._taken[at] = True
        for each in chains:
            self._parent[each] = at
        self._nbytes[at] = nbytes
        return True

    def _find(self, at: int) -> int:
        while self._parent[at] != at:
            self._parent[at] = self._parent[self._parent[at]]
            at = self._parent[at]
        return at
