"""Recompute: let backward run kernels of forward again, instead of keeping what they saved.

A pass over a forward graph and the backward graph that belongs to it, as captured.  What comes
out is planned like any captured graph: the values that are made again are nobody's to move, and
what the further kernels read is fetched like anything else.

Note [What runs again].  Before the first kernel of backward that reads a value that was dropped
stand the kernels of forward that make it, in their order: the one that wrote it, those that
made what this one reads and backward does not have, and so on.  No kernel runs again twice, since
what it made and somebody still reads stays until then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from zcompile.ir import (
    KERNELS,
    Compute,
    Role,
    Schedule,
    Step,
    Value,
    given,
    name_in_backward,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A forward graph and the backward graph that gets what it saves, both as captured."""

    forward: Schedule
    backward: Schedule


def pairs(graphs: Iterable[Schedule]) -> tuple[Pair, ...]:
    """Return the graphs that belong together: what one saves the other is given."""
    graphs = tuple(graphs)
    makers: dict[str, Schedule] = {}
    for graph in graphs:
        outputs = set(graph.outputs)
        saved = (each.name for each in graph.values if each.role is Role.SAVED)
        makers.update((name, graph) for name in saved if name in outputs)
    found: dict[tuple[str, str], Pair] = {}
    for graph in graphs:
        for each in graph.values:
            maker = makers.get(each.name) if each.role is Role.SAVED else None
            if maker is not None and maker is not graph:
                found.setdefault((maker.name, graph.name), Pair(maker, graph))
                break
    return tuple(found.values())


def without_saved(forward: Schedule, dropped: Collection[str]) -> Schedule:
    """Return ``forward`` with the values ``dropped`` out of what it hands on."""
    left = tuple(name for name in forward.outputs if name not in dropped)
    return replace(forward, outputs=left)


class Reruns:
    """What is there in a forward graph to run again, and what its backward graph knows of it.

    ``kernels`` are those of forward, in order, and ``made_by`` says by number which of them
    writes a value.  ``known`` are the values that backward is given under the same name.
    """

    def __init__(self, pair: Pair) -> None:
        self.forward, self.backward = pair.forward, pair.backward
        self.kernels = tuple(step for step in pair.forward.steps if isinstance(step, Compute))
        self.given = given(pair.forward)
        self.values = {each.name: each for each in pair.forward.values}
        there = given(pair.backward)
        self.known = frozenset(
            each.name
            for each in pair.backward.values
            if each.name in there and each.name in self.values
        )
        self.made_by: dict[str, int] = {}
        for number, kernel in enumerate(self.kernels):
            for name in kernel.writes:
                self.made_by.setdefault(name, number)

    def is_lost(self, name: str) -> bool:
        """Whether nobody has the value called ``name`` when backward runs: no more than forward."""
        return name not in self.known and name not in self.given


def with_again(pair: Pair, dropped: Collection[str]) -> Schedule:
    """Return the backward graph of ``pair``, making the saved values ``dropped`` again.

    Kernels that repeat must lead to them: see `zcompile.passes.repeatable`.
    """
    return _Insertion(Reruns(pair), frozenset(dropped)).schedule()


def apply(graphs: Mapping[str, Schedule], dropped: Collection[str]) -> dict[str, Schedule]:
    """Return ``graphs``, captured, with the saved values ``dropped`` made again by backward."""
    found = dict(graphs)
    if not dropped:
        return found
    for pair in pairs(graphs.values()):
        saved = {each.name for each in pair.forward.values if each.role is Role.SAVED}
        own = saved.intersection(dropped)
        if own:
            found[pair.forward.name] = without_saved(found[pair.forward.name], own)
            found[pair.backward.name] = with_again(pair, own)
    return found


def again_steps(schedule: Schedule) -> Iterator[Compute]:
    """Yield the kernels of ``schedule`` that run again."""
    return (step for step in schedule.steps if isinstance(step, Compute) and step.again)


@dataclass(slots=True)
class _Insertion:
    """The backward graph under construction."""

    reruns: Reruns
    dropped: frozenset[str]
    made: set[str] = field(default_factory=set[str])
    """Values of forward that a kernel that ran again has made."""

    def schedule(self) -> Schedule:
        steps: list[Step] = []
        for step in self.reruns.backward.steps:
            if isinstance(step, KERNELS):
                steps += self._runs([each for each in step.reads if self._is_missing(each)])
            steps.append(step)
        steps = _pruned(steps, self.dropped)
        backward = self.reruns.backward
        return replace(
            backward, values=(*backward.values, *self._new_values(steps)), steps=tuple(steps)
        )

    def _runs(self, missing: Sequence[str]) -> Iterator[Compute]:
        """Yield the kernels that make the values ``missing``: see Note [What runs again]."""
        numbers: set[int] = set()
        wanted = list(missing)
        while wanted:
            name = wanted.pop()
            number = self.reruns.made_by[name]
            if number not in numbers and name not in self.made:
                numbers.add(number)
                reads = self.reruns.kernels[number].reads
                wanted += (each for each in reads if self._is_missing(each))
        for number in sorted(numbers):
            yield self._again(self.reruns.kernels[number])

    def _is_missing(self, name: str) -> bool:
        """Whether a value of forward is not there in backward, at least not yet."""
        if name in self.made or name not in self.reruns.made_by:
            return False
        return name in self.dropped or self.reruns.is_lost(name)

    def _again(self, kernel: Compute) -> Compute:
        writes = [each for each in kernel.writes if self._is_missing(each)]
        self.made.update(writes)
        return Compute(
            name_in_backward(self.reruns.forward.name, kernel.kernel),
            tuple(map(self._name, kernel.reads)),
            tuple(map(self._name, writes)),
            kernel.transient_bytes,
            again=True,
        )

    def _name(self, name: str) -> str:
        """Return what a value of forward is called in backward."""
        is_shared = name in self.reruns.known or name in self.dropped
        if is_shared or self.reruns.values[name].role is Role.PARAMETER:
            return name
        return name_in_backward(self.reruns.forward.name, name)

    def _new_values(self, steps: Iterable[Step]) -> Iterator[Value]:
        """Yield the values that backward does not have on its own, in the order of their use."""
        theirs = {self._name(name): value for name, value in self.reruns.values.items()}
        seen = {each.name for each in self.reruns.backward.values}
        for step in steps:
            if not (isinstance(step, Compute) and step.again):
                continue
            for name in (*step.reads, *step.writes):
                if name not in seen:
                    seen.add(name)
                    yield self._new_value(name, theirs[name])

    def _new_value(self, name: str, theirs: Value) -> Value:
        if theirs.role is Role.PARAMETER:
            return replace(theirs, held=False)
        if theirs.name in self.reruns.given:
            return replace(theirs, name=name, held=True)
        return Value(name, theirs.nbytes, Role.INTERMEDIATE)


def _pruned(steps: Sequence[Step], dropped: Collection[str]) -> list[Step]:
    """Return ``steps`` with those writes of kernels that run again that somebody reads."""
    read: set[str] = set()
    found: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, Compute) and step.again:
            writes = tuple(name for name in step.writes if name in read or name in dropped)
            step = replace(step, writes=writes)
        if isinstance(step, KERNELS):
            read.update(step.reads)
        found.append(step)
    return found[::-1]
