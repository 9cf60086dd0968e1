"""The plans of a session's graphs as FX modules, emitted when a graph first runs by a plan.

Note [Forward decides].  Which saved values a backward graph gets, and which it has to make again,
is what forward did when it ran.  Usually that is what is planned now; but a plan may have been made
between the two, and where hooks pack what is saved, forward hands out the tensors themselves.
A module for that case is emitted beside the usual one, and runs by a plan of its own.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

from zcompile.bridge.emit import Emitted
from zcompile.bridge.torch_private import has_hooks_on_saved
from zcompile.errors import size_text
from zcompile.graph_plan import GraphPlan
from zcompile.graphs import Graph, Planned
from zcompile.ir import Compute, kernel_name
from zcompile.passes.lean import lean_peak
from zcompile.passes.pipeline import run_within_budget
from zcompile.passes.placement import target_for
from zcompile.passes.recompute import pairs, with_again
from zcompile.planner import Planner
from zcompile.runtime import libc
from zcompile.runtime.handles import Kept


class Emissions:
    """What was emitted for the plans of ``planner``, which keep ``device_budget``."""

    def __init__(self, planner: Planner, device_budget: int | None) -> None:
        self._planner = planner
        self._device_budget = device_budget
        self._usual: dict[str, Planned] = {}
        self._other: dict[tuple[str, frozenset[str]], tuple[GraphPlan, Planned]] = {}
        self._for_hooks: dict[str, tuple[Planned, Emitted]] = {}
        self.peak_bytes = 0
        """The most device bytes that a plan which was emitted holds."""

    def planned(self) -> tuple[Planned, ...]:
        """Return every graph that has run, with its usual plan."""
        return tuple(self._usual.values())

    def forget(self, name: str) -> None:
        """Drop what was emitted for the graph called ``name``."""
        self._usual.pop(name, None)

    def of(self, graph: Graph, kept: Kept | None) -> Planned:
        """Return what is to run for ``graph``; ``kept`` is on the handle that forward gave it."""
        plan = self._planner.plan(graph.name)
        dropped = frozenset[str]() if kept is None else kept.dropped
        if graph.saved and plan.dropped != dropped:
            return self._for_other(graph, dropped)
        known = self._usual.get(graph.name)
        if known is None or known.plan is not plan:
            known = self._usual[graph.name] = self._emit(graph, plan)
        return known

    def for_hooks(self, graph: Graph, planned: Planned) -> Emitted:
        """Return what runs: where hooks pack what is saved, they get the tensors themselves."""
        if not planned.emitted.dropped or not has_hooks_on_saved():
            return planned.emitted
        known = self._for_hooks.get(graph.name)
        if known is None or known[0] is not planned:
            emitted = graph.emit(planned.schedule, hands_out_all=True)
            known = self._for_hooks[graph.name] = planned, emitted
        return known[1]

    def _for_other(self, graph: Graph, dropped: frozenset[str]) -> Planned:
        """Return a backward graph for what forward did: see Note [Forward decides]."""
        usual, key = self._planner.plan(graph.name), (graph.name, dropped)
        known = self._other.get(key)
        if known is None or known[0] is not usual:
            plan = self._plan_for(usual, dropped)
            budget = self._device_budget
            if budget is not None and plan.peak_bytes > budget:
                warnings.warn(_over_budget(graph.name, plan.peak_bytes, budget), stacklevel=2)
            known = self._other[key] = usual, self._emit(graph, plan)
        return known[1]

    def _plan_for(self, usual: GraphPlan, dropped: frozenset[str]) -> GraphPlan:
        """Plan a backward graph that gets all saved values but those ``dropped``.

        Where no plan for what there is keeps the budget, it is the leanest one.
        """
        planner, source = self._planner, usual.captured
        if dropped:
            all_pairs = pairs(planner.graphs.values())
            source = with_again(next(e for e in all_pairs if e.backward is source), dropped)
        target = target_for(source, planner.placement, planner.values, planner.io_target)
        least_bytes = lean_peak(source, target)
        if target.device_budget is not None and least_bytes > target.device_budget:
            target = replace(target, device_budget=least_bytes)
        plan = run_within_budget(planner.pipeline, source, target)
        return GraphPlan.of(usual.captured, source, target, plan)

    def _brought(self, forward: GraphPlan) -> tuple[str, ...]:
        """Return what backward needs of the arguments of a forward graph."""
        graphs = self._planner.graphs
        found = (e for e in pairs(graphs.values()) if e.forward.name == forward.captured.name)
        return next((self._planner.plan(e.backward.name).brought for e in found), ())

    def _emit(self, graph: Graph, plan: GraphPlan) -> Planned:
        emitted = graph.emit(plan.schedule)
        libc.return_freed_memory()  # compiling has just left much of it
        self.peak_bytes = max(self.peak_bytes, plan.peak_bytes)
        brought = self._brought(plan) if emitted.dropped else ()
        kernels = {kernel_name(e) for e in plan.schedule.steps if isinstance(e, Compute)}
        costs = {name: cost for name, cost in graph.costs.items() if name in kernels}
        return Planned.of(plan, emitted, costs, brought)


def _over_budget(graph: str, peak_bytes: int, budget: int) -> str:
    return (
        f"{graph}: {size_text(peak_bytes)} are needed, {size_text(peak_bytes - budget)} more than "
        f"device_budget={budget}: hooks on saved tensors hold what backward would make again, or "
        "forward ran by an earlier plan; the numbers are right"
    )
