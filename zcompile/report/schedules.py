"""`zcompile.schedules`: the plans of a compiled model."""

from __future__ import annotations

import difflib
import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zcompile.graph_plan import GraphPlan
from zcompile.ir import Cost, Hardware, Schedule, Target, render
from zcompile.machines import load_machine
from zcompile.passes.base import Stage
from zcompile.passes.pipeline import Rejected
from zcompile.report.estimate import Estimate, estimate
from zcompile.report.excerpt import header, steps_with_bytes
from zcompile.report.explain import Life, Placed, Told
from zcompile.report.owner import session_of
from zcompile.session import Session


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleReport:
    """The plan of one graph, and how it came about.

    ``schedule`` is the plan as data and ``code`` the Python of the FX module that carries it
    out, empty for an update, which needs none.  ``stages`` holds the schedule before and after
    each pass of ``pipeline``, which planned for ``target``.  ``costs`` says what each kernel costs
    for the shapes of the first call.  ``rejected`` are plans that broke the budget, and ``placed``
    says where everything managed rests and why.  Printing a report shows an excerpt.
    """

    schedule: Schedule
    stages: tuple[Stage, ...]
    code: str
    pipeline: str
    target: Target
    costs: Mapping[str, Cost]
    rejected: tuple[Rejected, ...]
    placed: Placed

    @property
    def name(self) -> str:
        """The name of the graph, such as ``forward.0``."""
        return self.schedule.name

    def text(self) -> str:
        """Return the whole plan under a header; `zcompile.ir.parse` reads it back."""
        lines = header(self.schedule, self.target, self.pipeline)
        return "\n".join([*lines, render(self.schedule)])

    def steps(self) -> str:
        """Return every step beside the bytes that the device holds during it."""
        return "\n".join(steps_with_bytes(self.schedule, self.target, whole=True))

    def diff(self, stage: str | None = None) -> str:
        """Return what the pass called ``stage`` changed, as a unified diff of the two texts.

        Without a name: what all passes together made of the captured graph.  Raises
        ``ValueError`` if no pass of that name ran.
        """
        if stage is None:
            return _diff(self.stages[0].before, self.schedule) if self.stages else ""
        for each in self.stages:
            if each.name == stage:
                return each.diff()
        ran = ", ".join(each.name for each in self.stages) or "none"
        raise ValueError(f"{self.name}: no pass {stage!r} ran; these did: {ran}")

    def explain(self, value: str, machine: str | Path | Hardware | None = None) -> Life:
        """Return the life of the value called ``value``: print it, or look at its fields.

        It says where the value rests and why, and of each fetch, use, write and release why it
        is at that step.  With a ``machine``, as for `simulate`, it says how much of its copies
        the plan would wait for.  Gradients and optimizer states are called
        ``"layers.0.weight:grad"`` and ``"layers.0.weight:exp_avg"``.

        Raises ``ValueError`` with names that are near for one that there is not.
        """
        exposed_s: tuple[float, ...] = ()
        if machine is not None:
            exposed_s = tuple(e.exposed_s for e in self.simulate(machine).simulated.steps)
        told = Told(
            self.schedule, self.stages, self.pipeline, self.rejected, self.placed, exposed_s
        )
        return told.life(value)

    def simulate(self, machine: str | Path | Hardware) -> Estimate:
        """Return how long this plan would take on ``machine``, and what it would wait for.

        ``machine`` is a name out of `zcompile.machines.machine_names`, ``"here"`` for this
        machine as ``zinf bench`` measured it, the path of a JSON file of that form, or a
        `Hardware`.  Kernel times are those of the roofline, none is measured, and nothing
        runs beside this graph.

        Raises ``ValueError`` for a machine that there is not, that has no link for a move of
        the plan, or that gives no time for one of its operations.
        """
        hardware = machine if isinstance(machine, Hardware) else load_machine(machine)
        return estimate(self.schedule, self.costs, hardware)

    def __str__(self) -> str:
        lines = header(self.schedule, self.target, self.pipeline)
        return "\n".join([*lines, *steps_with_bytes(self.schedule, self.target)])

    def __repr__(self) -> str:
        return f"<ScheduleReport {self.name}: {len(self.schedule.steps)} steps>"

    def _repr_html_(self) -> str:
        """Return the excerpt for a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"


def schedules(model: object, *, updates: bool = False) -> tuple[ScheduleReport, ...]:
    """Return the plan of each graph of ``model``, in the order in which they were planned.

    With ``updates`` the plans of optimizers' updates follow, each called ``update``: of those that
    have copies to wait for, the latest, from the first step on.

    ``model`` is what ``torch.compile`` returned, or what was given to it: a module or a
    function.  Backward is captured lazily, so its plan is there after the first backward.
    Of a model compiled again under other options, the latest plans are returned.

    Raises ``ValueError`` if ``model`` was not compiled by this backend or has not run yet.
    """
    session = session_of(model)
    placed = _placed(session)
    graphs = [
        _report(each.plan, each.module.code, each.costs, placed) for each in session.planned()
    ]
    if updates:
        graphs += [_report(each, "", {}, placed) for each in session.planner.updates]
    return tuple(graphs)


def _placed(session: Session) -> Placed:
    planner, budget = session.planner, session.options.device_budget
    graphs: dict[str, tuple[str, ...]] = {}
    for each in planner.plans():
        for value in each.captured.values:
            graphs[value.name] = (*graphs.get(value.name, ()), each.captured.name)
    return Placed(
        {each.name: each for each in planner.values},
        {each.value: each for each in planner.placement.verdicts},
        graphs,
        None if budget is None else budget - planner.peak_bytes,
    )


def _report(
    planned: GraphPlan, code: str, costs: Mapping[str, Cost], placed: Placed
) -> ScheduleReport:
    return ScheduleReport(
        planned.schedule,
        planned.plan.stages,
        code,
        planned.plan.pipeline,
        planned.target,
        costs,
        planned.plan.rejected,
        placed,
    )


def _diff(before: Schedule, after: Schedule) -> str:
    lines = difflib.unified_diff(
        render(before).splitlines(),
        render(after).splitlines(),
        "captured",
        "planned",
        lineterm="",
        n=1,
    )
    return "\n".join(lines)
