"""A captured graph as all sessions share it, and as one session has planned it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from zcompile.bridge.capture import Captured, gradient_name
from zcompile.bridge.sizes import Bindings, SymbolReader, UnknownSize, evaluate, hint
from zcompile.graph_plan import GraphPlan
from zcompile.ir import Cost, Schedule, Target
from zcompile.passes.base import Stage


class Graph:
    """One captured graph and its kernels; nothing in it depends on a plan.

    ``parameters`` gives the position of each parameter among the arguments, ``layouts`` how
    each gradient value lies: its parameter may be gone when backward runs; ``itemsizes`` are
    the bytes of an element of each parameter with a gradient.
    ``saved`` gives the position of each activation that may have been moved.  Of parameters
    over one storage only the first is a value; the others are read where they are.

    Dynamo may run the code it compiled for one model with another model of the same
    class, so a graph knows no session and no tensor.
    """

    def __init__(self, captured: Captured, compiled: Mapping[str, nn.Module] | None) -> None:
        self.captured = captured
        self.compiled = compiled
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
        self._symbols = SymbolReader(captured.graph)

    @property
    def name(self) -> str:
        return self.captured.name

    def bindings(self, args: Sequence[Any]) -> Bindings:
        """Return the values of the graph's symbols in a call with ``args``."""
        return self._symbols.read(args)

    def schedule(self, bindings: Bindings | None, *, lenient: bool) -> Schedule:
        """Return the captured schedule for the shapes of a call, or of the first one.

        ``lenient`` counts a size that only the data decides as zero: right where there is
        no budget to keep.  Otherwise such a size raises ``UnknownSize``.
        """
        known = dict(bindings or ())

        def size_of(size: Any) -> int:
            try:
                return hint(size) if bindings is None else evaluate(size, known)
            except UnknownSize:
                if lenient:
                    return 0
                raise

        return self.captured.schedule(size_of)

    def managed(self, args: Sequence[Any]) -> dict[str, Tensor]:
        """Return the parameters among ``args`` by the name of their value."""
        return {name: args[at] for name, at in self.parameters.items()}

    def movable(self, args: Sequence[Any]) -> dict[str, Tensor]:
        """Return those parameters, and the activations that forward may have moved."""
        return self.managed(args) | {name: args[at] for name, at in self.saved.items()}


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph as one session runs it: its plan, and the module emitted from it.

    ``moves`` and ``passing_bytes`` are those of the plan, looked up at every call.  ``costs``
    says what each kernel costs for the shapes of the first call.
    """

    plan: GraphPlan
    module: fx.GraphModule
    moves: bool
    passing_bytes: int
    costs: Mapping[str, Cost]

    @classmethod
    def of(cls, plan: GraphPlan, module: fx.GraphModule, costs: Mapping[str, Cost]) -> Planned:
        """Return the planned graph that ``module`` was emitted for."""
        return cls(plan, module, plan.moves, plan.passing_bytes, costs)

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
