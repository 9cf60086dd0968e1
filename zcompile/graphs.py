"""A captured graph as all sessions share it, and as one session has planned it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from zcompile.bridge.capture import Captured, gradient_name
from zcompile.bridge.emit import Emitted, Forward, emit
from zcompile.bridge.sizes import Bindings, UnknownSize, evaluator, hint
from zcompile.bridge.symbols import SymbolReader
from zcompile.graph_plan import GraphPlan
from zcompile.ir import (
    Cost,
    Fetch,
    Offload,
    Schedule,
    Target,
    name_in_backward,
    name_in_forward,
)
from zcompile.passes.base import Stage
from zcompile.runtime.binding import Binding
from zcompile.runtime.handles import Kept


class Graph:
    """One captured graph and its kernels; nothing in it depends on a plan.

    ``parameters`` gives the position of each parameter among the arguments, ``layouts`` how
    each gradient value lies: its parameter may be gone when backward runs; ``itemsizes`` are
    the bytes of an element of each parameter with a gradient.
    ``saved`` gives the position of each activation that may have been moved, ``handed`` that of
    each among the outputs of a forward graph.  Of parameters
    over one storage only the first is a value; the others are read where they are.  A backward
    graph knows its ``forward``, whose segments it may run again; a forward graph its
    ``backward``, which will have the same shapes.

    Dynamo may run the code it compiled for one model with another model of the same
    class, so a graph knows no session and no tensor.
    """

    def __init__(
        self,
        captured: Captured,
        compiled: Mapping[str, nn.Module] | None,
        forward: Graph | None = None,
        backward: Captured | None = None,
    ) -> None:
        self.captured = captured
        self.compiled = compiled
        self.forward = forward
        self._backward = backward
        placeholders = captured.graph.find_nodes(op="placeholder")
        managed, values = captured.roles.managed, set(captured.names.values())
        self.parameters = {
            managed[node]: at
            for at, node in enumerate(placeholders)
            if node in managed and managed[node] in values
        }
        self.layouts = {
            gradient_name(parameter): captured.roles.layouts[parameter]
            for parameter in captured.roles.gradients.values()
        }
        self.itemsizes = {
            parameter: captured.roles.layouts[parameter].dtype.itemsize
            for parameter in captured.roles.gradients.values()
        }
        saved = captured.roles.saved
        self.saved = {saved[node]: at for at, node in enumerate(placeholders) if node in saved}
        leaving = captured.roles.leaving
        self.handed = {name: at for at, name in leaving.items() if name in captured.saved}
        self._inputs = {
            captured.names[captured.aliases.of(node)[0]]: at
            for at, node in reversed([*enumerate(placeholders)])
            if captured.aliases.of(node)
        }
        sized = (isinstance(node.meta.get("val"), int | torch.SymInt) for node in placeholders)
        self._sizes = {
            node.name: at
            for at, (node, is_size) in enumerate(zip(placeholders, sized, strict=True))
            if is_size
        }
        self._symbols = SymbolReader(captured.graph, saved)

    @property
    def name(self) -> str:
        return self.captured.name

    @property
    def costs(self) -> Mapping[str, Cost]:
        """What each kernel costs for the shapes of the first call, those of forward included."""
        if self.forward is None:
            return self.captured.costs
        again = self.forward.captured.costs.items()
        theirs = {name_in_backward(self.forward.name, name): cost for name, cost in again}
        return {**theirs, **self.captured.costs}

    def keep(self, args: Sequence[Any], dropped: Collection[str], brought: Collection[str]) -> Kept:
        """Return what a handle keeps of ``args``, those of a forward call.

        It stands for the saved values ``dropped``.
        ``brought`` are the values that backward will need then, by its names for them.
        """
        own = {name: name_in_forward(name) or name for name in brought}
        return Kept(
            self.name,
            frozenset(dropped),
            {name: args[self._inputs[theirs]] for name, theirs in own.items()},
            {name_in_backward(self.name, each): int(args[at]) for each, at in self._sizes.items()},
        )

    def bindings(self, args: Sequence[Any]) -> Bindings:
        """Return the values of the graph's symbols in a call with ``args``."""
        return self._symbols.read(args)

    def schedule(self, bindings: Bindings | None, *, lenient: bool) -> Schedule:
        """Return the captured schedule for the shapes of a call, or of the first one.

        ``lenient`` counts a size that only the data decides as zero: right where there is
        no budget to keep.  Otherwise such a size raises ``UnknownSize``.
        """
        return self.captured.schedule(_sizes(bindings, lenient=lenient))

    def schedules(self, bindings: Bindings, *, lenient: bool) -> list[Schedule]:
        """Return the same for a call, and for the backward that will follow it, if any will."""
        graphs = [self.captured, *([] if self._backward is None else [self._backward])]
        return [each.schedule(_sizes(bindings, lenient=lenient)) for each in graphs]

    def emit(self, schedule: Schedule, *, hands_out_all: bool = False) -> Emitted:
        """Write ``schedule``, a plan of this graph, as FX: see `zcompile.bridge.emit.emit`."""
        forward = None
        if self.forward is not None:
            forward = Forward(self.forward.captured, self.forward.compiled)
        return emit(self.captured, schedule, self.compiled, forward, hands_out_all=hands_out_all)

    def with_handle(
        self, results: Sequence[Any], dropped: Sequence[str], handle: Tensor
    ) -> list[Any]:
        """Return the ``results`` of a forward graph with ``handle`` where it handed on nothing."""
        found = list(results)
        for name in dropped:
            found[self.handed[name]] = handle
        return found

    def tensors(
        self, schedule: Schedule, args: Sequence[Any], kept: Kept | None
    ) -> dict[str, Binding]:
        """Return what the moves of ``schedule`` copy in a call; ``kept`` is on its handle."""
        given = self.movable(args) | dict(kept.tensors if kept is not None else {})
        found: dict[str, Binding] = {}
        for step in schedule.steps:
            if isinstance(step, Fetch):
                found[step.value] = Binding.to(given[step.value])
            elif isinstance(step, Offload) and step.value in self.layouts:
                found[step.value] = Binding(self.layouts[step.value])
        return found

    def managed(self, args: Sequence[Any]) -> dict[str, Tensor]:
        """Return the parameters among ``args`` by the name of their value."""
        return {name: args[at] for name, at in self.parameters.items()}

    def movable(self, args: Sequence[Any]) -> dict[str, Tensor]:
        """Return those parameters, and the activations that forward may have moved."""
        return self.managed(args) | {name: args[at] for name, at in self.saved.items()}


def _sizes(bindings: Bindings | None, *, lenient: bool) -> Callable[[Any], int]:
    known = hint if bindings is None else evaluator(dict(bindings))

    def size_of(size: Any) -> int:
        try:
            return known(size)
        except UnknownSize:
            if lenient:
                return 0
            raise

    return size_of


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph as one session runs it: its plan, and the module emitted from it.

    ``moves`` and ``passing_bytes`` are those of the plan, looked up at every call.  ``costs``
    says what each kernel costs for the shapes of the first call.  ``brought`` is what a
    handle has to bring for backward, in the place of what a forward graph does not hand on.
    """

    plan: GraphPlan
    emitted: Emitted
    moves: bool
    passing_bytes: int
    costs: Mapping[str, Cost]
    brought: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        plan: GraphPlan,
        emitted: Emitted,
        costs: Mapping[str, Cost],
        brought: tuple[str, ...] = (),
    ) -> Planned:
        """Return the planned graph that was ``emitted``."""
        return cls(plan, emitted, plan.moves, plan.passing_bytes, costs, brought)

    @property
    def module(self) -> fx.GraphModule:
        """The module that carries the plan out."""
        return self.emitted.module

    @property
    def schedule(self) -> Schedule:
        return self.plan.schedule

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.plan.plan.stages

    @property
    def pipeline(self) -> str:
        return self.plan.plan.pipeline

    @property
    def target(self) -> Target:
        return self.plan.target
