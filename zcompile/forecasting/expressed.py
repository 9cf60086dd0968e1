"""Polynomials read off captured graphs: what they hold at each moment, what they move and do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sympy as sp  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch import Tensor

from zcompile.bridge.aliases import Size
from zcompile.bridge.capture import Captured
from zcompile.bridge.costs import SizeOf
from zcompile.bridge.sizes import evaluator, hint, symbol_placeholders, symbols_of
from zcompile.forecasting.polynomials import GRID, ZERO, Coefficients, interpolated, minus, plus
from zcompile.ir import (
    MANAGED_ROLES,
    Compute,
    Fetch,
    Offload,
    Operation,
    Release,
    Schedule,
    Target,
    Tier,
    given,
    last_touch,
    operands,
    page_aligned,
)
from zcompile.passes.offload import Offload as OffloadPass
from zcompile.passes.placement import with_homes
from zcompile.passes.stream import Stream

TRACED_BATCH, TRACED_SEQUENCE = 6, 10
"""The lengths that are traced: torch makes numbers of 0 and 1, and one symbol of equal lengths."""


@dataclass(frozen=True, slots=True)
class Work:
    """What operations of one kind do, each of them: see `zcompile.ir.Operation`."""

    kind: str
    dtype: str
    flops: Coefficients
    nbytes: Coefficients
    launches: int


@dataclass(frozen=True, slots=True)
class Expressed:
    """The polynomials of one step: see `Symbolic`.

    ``resident`` and ``lean`` are what is held at every moment with everything on the device,
    and by the leanest plan.
    """

    resident: tuple[Coefficients, ...]
    lean: tuple[Coefficients, ...]
    moved_bytes: int
    work: Mapping[Work, int]


def express(captured: Sequence[Captured]) -> Expressed:
    """Return the polynomials of graphs that were captured with both lengths as symbols."""
    return _Reader(captured).result()


class _Reader:
    """Reads polynomials off captured graphs, by their values at each point of the grid."""

    def __init__(self, captured: Sequence[Captured]) -> None:
        self._captured = captured
        symbols = _lengths(captured)
        self._sizes = [_size_of(symbols, *point) for point in GRID]
        self._schedules = [each.schedule(hint) for each in captured]
        self._homes = {
            value.name: Tier.NVME
            for schedule in self._schedules
            for value in schedule.values
            if value.role in MANAGED_ROLES
        }

    def result(self) -> Expressed:
        lean = [self._lean(each) for each in self._schedules]
        here = dict.fromkeys(self._homes, Tier.DEVICE)
        resident = [with_homes(each, here) for each in self._schedules]
        return Expressed(
            resident=tuple(set(self._moments(resident, at_home=True))),
            lean=tuple(set(self._moments(lean, at_home=False))),
            moved_bytes=sum(map(_moved_bytes, lean)),
            work=self._work(),
        )

    def _lean(self, schedule: Schedule) -> Schedule:
        target = Target(homes=self._homes, has_nvme=True)
        return OffloadPass()(Stream()(with_homes(schedule, self._homes), target), target)

    def _moments(self, plans: Sequence[Schedule], *, at_home: bool) -> Iterator[Coefficients]:
        """Yield what is held at every moment; ``at_home`` says that all of it lives there."""
        managed = {e.name: e.nbytes for plan in plans for e in plan.values if e.name in self._homes}
        for graph, plan in zip(self._captured, plans, strict=True):
            beside = (_beside(plan, managed) if at_home else 0, *ZERO[1:])
            yield from (plus(beside, each) for each in self._moments_of(graph, plan))

    def _moments_of(self, graph: Captured, plan: Schedule) -> Iterator[Coefficients]:
        during = self._interpolated_lists([graph.held_bytes(s) for s in self._sizes])
        held = _Held(plan, self._values(graph))
        yield held.now
        for at, step in enumerate(plan.steps):
            if isinstance(step, Compute):
                yield from (plus(held.now, each) for each in during[step.kernel])
            held.take(at)
            yield held.now

    def _values(self, graph: Captured) -> dict[str, Coefficients]:
        by_point = [{e.name: e.nbytes for e in graph.schedule(s).values} for s in self._sizes]
        return {name: interpolated([each[name] for each in by_point]) for name in by_point[0]}

    def _interpolated_lists(
        self, by_point: Sequence[Mapping[str, tuple[int, ...]]]
    ) -> dict[str, tuple[Coefficients, ...]]:
        return {
            name: tuple(map(interpolated, zip(*(e[name] for e in by_point), strict=True)))
            for name in by_point[0]
        }

    def _work(self) -> Counter[Work]:
        found: Counter[Work] = Counter()
        for graph in self._captured:
            by_point = [graph.costs_for(size_of) for size_of in self._sizes]
            for kernel in by_point[0]:
                for same in zip(*(each[kernel] for each in by_point), strict=True):
                    found[_work(same)] += 1
        return found


def _work(same: Sequence[Operation]) -> Work:
    """Return the operation that has these costs at the points of the grid."""
    first = same[0]
    if first.kind is None:
        raise ValueError(f"nothing is known of what {first.name} does")
    flops, nbytes = (interpolated([get(e) for e in same]) for get in (_flops, _nbytes))
    return Work(str(first.kind), first.dtype, flops, nbytes, first.count)


def _flops(operation: Operation) -> int:
    return operation.flops


def _nbytes(operation: Operation) -> int:
    return operation.nbytes


class _Held:
    """What a plan holds on the device as it goes on: as the account of bytes has it."""

    def __init__(self, plan: Schedule, sizes: Mapping[str, Coefficients]) -> None:
        self._plan = plan
        self._sizes = sizes
        self._last = last_touch(plan)
        self._given = given(plan)
        device = {each.name for each in plan.values if each.home is Tier.DEVICE}
        kept = {each.name for each in plan.values if each.held} | set(plan.outputs)
        self._ends = device - kept
        self._ordinary = device & self._given
        self._fetched: set[str] = set()
        self.now = ZERO
        for name in self._ordinary:
            self.now = plus(self.now, sizes[name])

    def take(self, at: int) -> None:
        step = self._plan.steps[at]
        match step:
            case Compute():
                made = set(step.writes) - self._given - self._ordinary - self._fetched
                self._add(made)
                ending = (n for n in operands(step) if self._last[n] == at and n in self._ends)
                self._drop(set(ending) & self._ordinary)
            case Fetch(_, value):
                self._fetched.add(value)
                self.now = plus(self.now, _whole_pages(self._sizes[value]))
            case Release(value) if value in self._fetched:
                self._fetched.remove(value)
                self.now = minus(self.now, _whole_pages(self._sizes[value]))
            case Release(value):
                self._drop({value})
            case _:
                pass

    def _add(self, names: set[str]) -> None:
        self._ordinary |= names
        for name in names:
            self.now = plus(self.now, self._sizes[name])

    def _drop(self, names: set[str]) -> None:
        self._ordinary -= names
        for name in names:
            self.now = minus(self.now, self._sizes[name])


def _whole_pages(size: Coefficients) -> Coefficients:
    """Only what is managed is fetched, and its size is a number."""
    return (page_aligned(size[0]), *size[1:])


def _beside(plan: Schedule, managed: Mapping[str, int]) -> int:
    """Return the bytes at home on the device that ``plan`` does not show from its start."""
    shown = {each.name for each in plan.values} & given(plan)
    return sum(nbytes for name, nbytes in managed.items() if name not in shown)


def _moved_bytes(plan: Schedule) -> int:
    sizes = {each.name: each.nbytes for each in plan.values}
    return sum(sizes[step.value] for step in plan.steps if isinstance(step, Fetch | Offload))


def _lengths(captured: Sequence[Captured]) -> dict[sp.Symbol, int]:
    """Return for each symbol of the graphs which length it stands for: 0 batch, 1 sequence."""
    found: dict[sp.Symbol, int] = {}
    for graph in captured:
        for node in graph.graph.nodes:
            for symbol in symbols_of(node) - found.keys():
                found[symbol] = _which(graph, symbol)
    return found


def _which(graph: Captured, symbol: sp.Symbol) -> int:
    known = symbol_placeholders(graph.graph)
    value: Any = known[symbol].meta["val"] if symbol in known else _length(graph, symbol)
    return (TRACED_BATCH, TRACED_SEQUENCE).index(hint(value))


def _length(graph: Captured, symbol: sp.Symbol) -> Size:
    """Return a length of some tensor of the graph that is ``symbol`` and nothing else."""
    for node in graph.graph.nodes:
        value: Any = node.meta.get("val")
        lengths: Sequence[Any] = value.shape if isinstance(value, Tensor) else ()
        for length in lengths:
            if isinstance(length, torch.SymInt) and cast("Any", length).node.expr == symbol:
                return length
    raise ValueError(f"no tensor of {graph.name} has the length {symbol}")


def _size_of(symbols: Mapping[sp.Symbol, int], batch: int, sequence: int) -> SizeOf:
    values = {symbol: (batch, sequence)[which] for symbol, which in symbols.items()}
    return evaluator(values)
