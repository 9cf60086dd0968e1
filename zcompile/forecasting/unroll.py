"""From the schedule of a few layers to that of many: pure renaming and repetition.

Note [Blocks are copied between others].  A schedule of five blocks or more has a middle one,
the *pivot*, that stands between its like.  Copies of its steps go right before it.  What each
of them reads of the block before it is what the block before it, now another copy, has made in
the same place; all else that the steps around them read and write keeps its name.  Layers are
known by their number in the names of parameters, which grow from where the copies are.

That nothing else depends on the number of layers is an assumption.  `agrees` tests it: the
schedule of five blocks, made one longer, must be the one that was traced with six.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from zcompile.forecasting.layers import Layers
from zcompile.ir import Compute, Cost, Role, Schedule, Value

PIVOT = 2
"""The block that is copied; the one before it and the one after it have to be there."""

PASSING = frozenset({Role.INPUT, Role.ACTIVATION, Role.INTERMEDIATE})
"""Roles of values whose names say nothing: Dynamo and the tracer number them."""

Rename = Callable[[str], str]


class NotRepeated(ValueError):
    """The schedule is not made of blocks that are alike."""


@dataclass(frozen=True, slots=True)
class Costed:
    """A captured schedule and what its kernels cost."""

    schedule: Schedule
    costs: Mapping[str, Cost]


def unroll(short: Costed, layers: Layers, num_copies: int, shift: int = 0) -> Costed:
    """Return ``short`` with so many more blocks of ``layers``, as if it had been traced so.

    Kernels are numbered anew, and what is saved for backward: by ``shift`` more for each block,
    which brings parameters that stand before it.  Raises ``NotRepeated`` if there is no pivot to
    copy.
    """
    if not num_copies:
        return short
    return _Unrolled(short, layers, num_copies, shift).result()


def first_saved(costed: Costed) -> int:
    """Return the lowest number of what is saved for backward, 0 if nothing is."""
    return min((_number(e.name) for e in costed.schedule.values if e.role is Role.SAVED), default=0)


def _number(saved: str) -> int:
    return int(saved.rpartition(".")[2])


def agrees(a: Costed, b: Costed) -> bool:
    """Whether two schedules are the same but for the names of what is neither kept nor given."""
    return _plain(a) == _plain(b)


class _Names:
    """The numbers of layers in the names of values."""

    def __init__(self, layers: Layers) -> None:
        self._form = re.compile(rf"{re.escape(layers.prefix)}(\d+)\.(.*)", re.DOTALL)
        self._layers = layers

    def block(self, name: str) -> int | None:
        """Return the block that the value called ``name`` belongs to, if its name tells."""
        found = self._form.fullmatch(name)
        if found is None or int(found[1]) < self._layers.first:
            return None
        return (int(found[1]) - self._layers.first) // self._layers.unit

    def moved(self, name: str, num_blocks: int) -> str:
        """Return ``name`` with its layer so many blocks further on."""
        found = self._form.fullmatch(name)
        assert found is not None
        number = int(found[1]) + num_blocks * self._layers.unit
        return f"{self._layers.prefix}{number}.{found[2]}"


class _Unrolled:
    def __init__(self, short: Costed, layers: Layers, num_copies: int, shift: int) -> None:
        self._shift = shift
        self._short = short
        self._names = _Names(layers)
        self._copies = num_copies
        self._steps = [step for step in short.schedule.steps if isinstance(step, Compute)]
        self._start, self._stop, self._ascending = self._find_pivot()
        self._births = _births(self._steps)
        self._at_birth = {place: name for name, place in self._births.items()}

    def _find_pivot(self) -> tuple[int, int, bool]:
        """Return where the steps of the pivot begin and end, and whether blocks ascend."""
        first: dict[int, int] = {}
        for at, step in enumerate(self._steps):
            for name in (*step.reads, *step.writes):
                block = self._names.block(name)
                if block is not None:
                    first.setdefault(block, at)
        if not {PIVOT - 1, PIVOT, PIVOT + 1} <= first.keys():
            raise NotRepeated(f"{self._short.schedule.name}: no kernels of {PIVOT + 2} blocks")
        before, at, after = (first[PIVOT + by] for by in (-1, 0, 1))
        ascending = before < at
        start, stop = at, after if ascending else before
        if not start < stop:
            raise NotRepeated(f"{self._short.schedule.name}: its blocks are not in order")
        return start, stop, ascending

    def result(self) -> Costed:
        copies = [self._renaming(copy) for copy in range(1, self._copies + 1)]
        pivot = self._steps[self._start : self._stop]
        steps = [self._outside(each, copies) for each in self._steps[: self._start]]
        for rename in copies:
            steps += [_renamed(each, rename) for each in pivot]
        steps += [_renamed(each, self._pivot) for each in pivot]
        steps += [self._outside(each, copies) for each in self._steps[self._stop :]]
        old = [*self._steps[: self._start], *pivot * len(copies), *self._steps[self._start :]]
        costs = {f"seg_{at}": self._short.costs[each.kernel] for at, each in enumerate(old)}
        numbered = [replace(step, kernel=f"seg_{at}") for at, step in enumerate(steps)]
        outputs = self._listed(self._short.schedule.outputs, copies)
        schedule = replace(
            self._short.schedule,
            values=tuple(self._values(copies)),
            steps=tuple(numbered),
            outputs=tuple(rename(name) for name, rename in outputs),
        )
        return Costed(_with_names(schedule, self._saved_names()), costs)

    def _outside(self, step: Compute, copies: Sequence[Rename]) -> Compute:
        """Return a step of another block, or of none, as it is once the copies are there.

        One that touches the same of every block, such as the last, touches that of copies too.
        """
        reads, writes = (tuple(self._in_all(names, copies)) for names in (step.reads, step.writes))
        return replace(step, reads=reads, writes=writes)

    def _in_all(self, names: Sequence[str], copies: Sequence[Rename]) -> Iterator[str]:
        places = {twin: at for at, name in enumerate(names) if (twin := self._in_pivot(name))}
        for at, name in enumerate(names):
            if name not in places:
                yield self._around(name)
                continue
            renames = [*copies, self._pivot]
            yield from (
                rename(name) for rename in (renames if places[name] < at else renames[::-1])
            )

    def _in_pivot(self, name: str) -> str | None:
        """Return what is in the pivot what ``name`` is in the block before it, if it is of that."""
        ahead = 1 if self._ascending else -1
        block = self._names.block(name)
        if block is None:
            return self._twin(name)
        return self._names.moved(name, ahead) if block + ahead == PIVOT else None

    def _saved_names(self) -> dict[str, str]:
        """Return the final name of each value that is saved for backward.

        Its number is its place among all that is saved.  So from one to the next it grows by as
        much as in the short schedule, where copies repeat what it grows by within the pivot.
        """
        values = self._short.schedule.values
        saved = sorted((e.name for e in values if e.role is Role.SAVED), key=_number)
        order = [f"~{copy}" for copy in range(1, self._copies + 1)]
        order = [*order, ""] if self._ascending else ["", *reversed(order)]
        found: dict[str, str] = {}
        number, last = first_saved(self._short) + self._shift * self._copies, ""
        stretches = [list(group) for _, group in groupby(saved, self._is_pivots)]
        for at, names in enumerate(stretches):
            before, suffixes = last, [""]
            if self._is_pivots(names[0]):
                suffixes = order if self._ascends(stretches, at) else order[::-1]
            for suffix in suffixes:
                last = before
                for name in names:
                    number += _number(name) - _number(last) if last else 0
                    found[f"{name}{suffix}"] = f"{name.rpartition('.')[0]}.{number}"
                    last = name
        return found

    def _values(self, copies: Sequence[Rename]) -> Iterator[Value]:
        values = {each.name: each for each in self._short.schedule.values}
        for name, rename in self._listed(list(values), copies):
            yield replace(values[name], name=rename(name))

    def _listed(
        self, names: Sequence[str], copies: Sequence[Rename]
    ) -> Iterator[tuple[str, Rename]]:
        """Yield each of ``names``, those of the pivot once for each copy, with what renames it."""
        stretches = [list(group) for _, group in groupby(names, self._is_pivots)]
        for at, group in enumerate(stretches):
            if not self._is_pivots(group[0]):
                yield from ((name, self._around) for name in group)
                continue
            renames = [*copies, self._pivot]
            if self._ascends(stretches, at) is not self._ascending:
                renames.reverse()
            yield from ((name, rename) for rename in renames for name in group)

    def _ascends(self, stretches: Sequence[Sequence[str]], at: int) -> bool:
        """Whether blocks ascend around the stretch ``at``, which is the pivot's."""
        before = self._block_near(reversed(stretches[at - 1])) if at else None
        after = self._block_near(stretches[at + 1]) if at + 1 < len(stretches) else None
        return before < PIVOT if before is not None else (after or PIVOT) > PIVOT

    def _block_near(self, names: Iterable[str]) -> int | None:
        """Return the first block that one of ``names`` is of, by its number or its birth."""
        length = self._stop - self._start
        for name in names:
            block = self._names.block(name)
            if block is None and name in self._births:
                ahead = (self._births[name][0] - self._start) // length
                if ahead in (-1, 1):
                    block = PIVOT + ahead if self._ascending else PIVOT - ahead
            if block is not None:
                return block
        return None

    def _is_pivots(self, name: str) -> bool:
        """Whether each copy of the pivot has a value of its own for the one called ``name``."""
        block = self._names.block(name)
        if block is not None:
            return block == PIVOT
        return self._start <= self._births.get(name, (-1,))[0] < self._stop

    def _around(self, name: str) -> str:
        block = self._names.block(name)
        return name if block is None else self._numbered(name, block)

    def _numbered(self, name: str, block: int) -> str:
        """Return ``name`` with the number that its block has once the copies are there."""
        stays = block < PIVOT or (block == PIVOT and not self._ascending)
        return name if stays else self._names.moved(name, self._copies)

    def _pivot(self, name: str) -> str:
        twin = self._twin(name)
        if twin is not None:
            return f"{twin}~{self._copies}"
        block = self._names.block(name)
        if block is None:
            return name
        # The pivot comes last: it is the highest of the new blocks going up, the lowest down.
        return self._names.moved(name, self._copies if self._ascending else 0)

    def _renaming(self, copy: int) -> Rename:
        """Return how the ``copy`` (from 1 on, in the order of the steps) calls things."""
        further = copy - 1 if self._ascending else self._copies - copy + 1

        def rename(name: str) -> str:
            if self._names.block(name) is not None:
                return self._names.moved(name, further)
            if self._is_pivots(name):
                return f"{name}~{copy}"
            twin = self._twin(name)
            return name if twin is None or copy == 1 else f"{twin}~{copy - 1}"

        return rename

    def _twin(self, name: str) -> str | None:
        """Return what is in the pivot what ``name`` is in the block before it."""
        if name not in self._births or self._names.block(name) is not None:
            return None
        at, *place = self._births[name]
        length = self._stop - self._start
        if not self._start - length <= at < self._start:
            return None
        twin = self._at_birth.get((at + length, *place))
        return twin if twin is not None and self._names.block(twin) is None else None


Place = tuple[int, ...]


def _births(steps: Sequence[Compute]) -> dict[str, Place]:
    """Return where each value is first met: the step, read or written there, and at which place."""
    found: dict[str, Place] = {}
    for at, step in enumerate(steps):
        for verb, names in enumerate((step.reads, step.writes)):
            for place, name in enumerate(names):
                found.setdefault(name, (at, verb, place))
    return found


def _with_names(schedule: Schedule, names: Mapping[str, str]) -> Schedule:
    def rename(name: str) -> str:
        return names.get(name, name)

    steps = (_renamed(e, rename) if isinstance(e, Compute) else e for e in schedule.steps)
    values = (replace(each, name=rename(each.name)) for each in schedule.values)
    return replace(
        schedule,
        values=tuple(values),
        steps=tuple(steps),
        outputs=tuple(map(rename, schedule.outputs)),
    )


def _renamed(step: Compute, rename: Rename) -> Compute:
    reads, writes = (tuple(map(rename, each)) for each in (step.reads, step.writes))
    return replace(step, reads=reads, writes=writes)


def _plain(costed: Costed) -> tuple[object, ...]:
    """Return the schedule with what passes in it called by where it is first met, in that order.

    The order of the others is the one in which they are placed.
    """
    schedule = costed.schedule
    computes = [step for step in schedule.steps if isinstance(step, Compute)]
    births = _births(computes)
    names = {
        each.name: str(births.get(each.name, "")) if each.role in PASSING else each.name
        for each in schedule.values
    }
    steps = [_sorted(_renamed(step, names.__getitem__), set(names)) for step in computes]
    values = [replace(each, name=names[each.name]) for each in schedule.values]
    kept = [each for each in values if each.role not in PASSING]
    passing = sorted(map(str, (each for each in values if each.role in PASSING)))
    outputs = sorted(names[name] for name in schedule.outputs)
    return kept, passing, steps, outputs, [costed.costs[step.kernel] for step in computes]


def _sorted(step: Compute, kept: Collection[str]) -> Compute:
    """Return ``step`` with the operands that pass behind those that are ``kept``, in order.

    Only of the latter the order counts: it is the one in which they are fetched.
    """
    reads, writes = (
        (*(n for n in names if n in kept), *sorted(n for n in names if n not in kept))
        for names in (step.reads, step.writes)
    )
    return replace(step, reads=reads, writes=writes)
