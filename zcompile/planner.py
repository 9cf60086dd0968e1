"""The plan of one model: a placement for all its graphs, and a schedule for each of them.

Glue between captured schedules and passes: no tensor, no device, no file.  Every method
either leaves a plan that keeps the budgets or raises and changes nothing.

Note [Pins that match nothing].  A pattern of ``place`` that matches no parameter is a
mistake.  Where a module is compiled all its parameters are known before the first graph is
planned, used by a graph or not, and the mistake is an error.  Where a function is compiled,
further graphs may bring further parameters, so it is a warning, and it waits for the end of
the first iteration: until then every graph of a usual training step has come.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from zcompile.choosing import Choosing, Chosen
from zcompile.errors import BudgetError
from zcompile.graph_plan import GraphPlan, Updates
from zcompile.io_buffers import block_bytes
from zcompile.ir import (
    Cost,
    Role,
    Schedule,
    Target,
    Tier,
    Value,
)
from zcompile.options import Options
from zcompile.passes.expected import LARGER_UPDATE_ROOM, UPDATE_ROOM
from zcompile.passes.measured import kernel_seconds, typical
from zcompile.passes.pins import idle_patterns
from zcompile.passes.pipeline import run_fastest, run_within_budget
from zcompile.passes.placement import (
    DoesNotFit,
    Placement,
    enlarged,
    lasting_values,
    managed_values,
    parameter_of,
    resident_bytes,
    target_for,
)
from zcompile.passes.smallest import Smallest
from zcompile.refusals import check_host, no_match, no_room_at_home, no_room_on_device
from zcompile.timing import Timing, pipeline_of

EXPECTED_STATES = ("exp_avg", "exp_avg_sq")
"""Until an optimizer has been seen, homes are kept for the states of Adam."""

LEAST_GAIN = 0.02
"""Plans that would take less than 2 % off an iteration do not replace those that run."""

EARLY_GAIN = 0.03
"""The share of the iteration that early updates have to save to be chosen."""

Foreseen = Callable[[], tuple[str, ...]]
"""Names the states of optimizers that there are; asked only where those of Adam have no room."""


class Planner:
    """Captured schedules in, plans out; all is planned anew when a graph or state is new."""

    def __init__(self, options: Options, foreseen_states: Foreseen = tuple) -> None:
        self._options = options
        self._foreseen_states = foreseen_states
        self._timing = Timing(options)
        self.pipeline = pipeline_of(options)
        self._choosing = Choosing(self._timing, self.pipeline, options.place, options.recompute)
        self._graphs: dict[str, Schedule] = {}
        self._states: tuple[str, ...] = ()
        self._itemsizes: dict[str, int] = {}
        self._plans: dict[str, GraphPlan] = {}
        self.updates = Updates()
        self._pins_are_checked = False
        self._begins_early = options.early_update is True
        self.placement = Placement({})
        self.values: tuple[Value, ...] = ()
        """Every managed value of the model that has a home."""
        self.update_target = self.io_target
        """What an update may use: every device home is spoken for."""
        self.seconds: float | None = None
        """What an iteration takes by simulation, each graph once; ``None`` if times are unknown."""

    def check_pins(self, parameters: Collection[str]) -> None:
        """Raise ``ValueError`` if a pattern of ``place`` matches none of ``parameters``.

        They are all that the model has; see Note [Pins that match nothing].
        """
        if idle := idle_patterns(self._options.place, parameters):
            raise ValueError(no_match(idle[0], parameters, self._options))
        self._pins_are_checked = True

    def doubts_about_pins(self) -> tuple[str, ...]:
        """Say of each pattern of ``place`` that matches nothing in any graph so far.

        Nothing is said where `check_pins` has found every pattern to match.
        """
        if self._pins_are_checked:
            return ()
        known = [each.name for each in self.values if each.role is Role.PARAMETER]
        idle = idle_patterns(self._options.place, known)
        return tuple(no_match(pattern, known, self._options) for pattern in idle)

    def announce(
        self,
        schedules: Iterable[Schedule],
        costs: Mapping[str, Mapping[str, Cost]] | None = None,
        itemsizes: Mapping[str, int] | None = None,
    ) -> tuple[str, ...]:
        """Plan with ``schedules``, captured, in place of those of the same names so far.

        ``costs`` says by graph what each kernel costs.  Where that is known of all graphs, and the
        machine to plan for, plans are compared by the time they take.  ``itemsizes`` are the
        bytes of an element of each parameter: states that are not kept as torch keeps them
        weigh accordingly.

        Returns the names of graphs that are dropped for it: those in which a value of the
        new ones has another size.  They are of a model that is no more, such as before
        ``model.double()``; one that runs again has to be announced again.
        """
        self._itemsizes.update(itemsizes or {})
        new = {each.name: each for each in schedules}
        self._timing.learn(costs or {})
        self._choosing.learn(costs or {})
        if all(self._graphs.get(name) == each for name, each in new.items()):
            return ()
        sizes = {each.name: each.nbytes for each in lasting_values(new.values())}
        stale = tuple(
            name
            for name, graph in self._graphs.items()
            if name not in new
            and any(
                sizes.get(each.name, each.nbytes) != each.nbytes for each in lasting_values([graph])
            )
        )
        kept = {name: each for name, each in self._graphs.items() if name not in stale}
        self._replan(kept | new, self._states)
        return stale

    def enlarge(self, schedules: Iterable[Schedule]) -> None:
        """Plan for the shapes of ``schedules`` as well, if they are larger than those so far.

        A plan for larger shapes serves smaller ones: where things go does not depend on
        how much of their space they fill.  Graphs that nobody has announced are left out.
        """
        known = self._graphs
        self.announce([enlarged(known[e.name], e) for e in schedules if e.name in known])

    def expect_states(self, states: Iterable[str]) -> None:
        """Take note of all states that an optimizer is about to make, and plan once for them."""
        new = [each for each in dict.fromkeys(states) if each not in self._states]
        if new:
            self._replan(self._graphs, (*self._states, *new))

    def observe_state(self, parameter: str, state: str) -> Tier:
        """Return the home of an optimizer state, which is placed when it is first heard of."""
        name = f"{parameter}:{state}"
        base = self._options.precision.state_named(state)
        if name not in self.placement.homes and base is not None:
            self.expect_states([base])
        return self.placement.homes.get(name, Tier.DEVICE)

    def correct(self, measured: Mapping[str, tuple[Schedule, Sequence[Sequence[float]]]]) -> bool:
        """Plan by what kernels took, if other plans are faster then; say whether they are.

        ``measured`` gives by graph the plan that ran, and of each run what passed between its
        moves.  No graph is captured and no kernel compiled for it.
        """
        self._timing.correct(
            {
                name: kernel_seconds(plan, typical(runs), self._timing.kernel_seconds(name))
                for name, (plan, runs) in measured.items()
            }
        )
        graphs, states = self._graphs, self._state_values(self._graphs)
        plans = self._plans.items()
        sources = {name: each.source for name, each in plans}
        now = Chosen(self.placement, sources, {name: each.plan for name, each in plans})
        now_s = self._choosing.seconds_of(
            graphs, self._update, states, self.io_target, now, self.early_bytes
        )
        self.seconds = now_s
        chosen = self._chosen(graphs, states)
        if now_s is None or chosen.seconds is None or chosen.seconds > (1 - LEAST_GAIN) * now_s:
            return False
        self._begins_early = chosen.begins_early
        values = self._with_homes(chosen.graphs, chosen.placement)
        self._plans = {
            name: GraphPlan.of(
                graph,
                chosen.graphs[name],
                target_for(chosen.graphs[name], chosen.placement, values, self.io_target),
                chosen.plans[name],
            )
            for name, graph in graphs.items()
        }
        self._settle_for(chosen)
        return True

    def plan(self, name: str) -> GraphPlan:
        """Return the plan of the graph called ``name``; the same object until it changes."""
        return self._plans[name]

    @property
    def graphs(self) -> Mapping[str, Schedule]:
        """All graphs by name, as captured."""
        return self._graphs

    def plans(self) -> tuple[GraphPlan, ...]:
        """Return the plans of all graphs, in the order in which they came."""
        return tuple(self._plans.values())

    @property
    def resident_bytes(self) -> int:
        """The bytes of all managed values whose home is the device."""
        return resident_bytes(self.placement, self.values)

    def plan_update(self, schedule: Schedule, target: Target) -> Schedule:
        """Return ``schedule``, an update, as the passes plan it."""
        timed = self._timing.of_update(schedule, target)
        if timed is None:
            plan = run_within_budget(self.pipeline, schedule, target)
        else:
            plan = run_fastest(self._timing.pipelines(self.pipeline), schedule, timed)
        self.updates.add(GraphPlan.of(schedule, schedule, target, plan))
        return plan.schedule

    @property
    def peak_bytes(self) -> int:
        """The most device bytes that a plan holds: one of a graph's, or of any update so far."""
        return max((self.updates.peak_bytes, *(each.peak_bytes for each in self.plans())))

    @property
    def io_block_bytes(self) -> int:
        """The size of one I/O buffer; a share of the budget, so that small budgets hold."""
        return block_bytes(self._options.device_budget)

    @property
    def _update(self) -> Schedule:
        """What the smallest update needs: twice as much if it works on more than torch's does."""
        return UPDATE_ROOM if self._options.precision.plain else LARGER_UPDATE_ROOM

    @property
    def io_target(self) -> Target:
        """The budgets, with nothing reserved but what files and early updates need."""
        return self._target(begins_early=self._begins_early)

    @property
    def early_bytes(self) -> int:
        """What updates may take of the device while backward runs; 0 if none may begin then."""
        return self._early_bytes(begins_early=self._begins_early)

    def _target(self, *, begins_early: bool) -> Target:
        options = self._options
        set_aside = replace(options.set_aside, early_update=begins_early)
        return Target(
            device_budget=options.device_budget,
            host_budget=options.host_budget,
            reserved_bytes=set_aside.nbytes(options.device_budget),
            has_nvme=options.nvme_dir is not None,
        )

    def _early_bytes(self, *, begins_early: bool) -> int:
        set_aside = replace(self._options.set_aside, early_update=begins_early)
        return set_aside.window_bytes(self._options.device_budget)

    def _all(self, graphs: Mapping[str, Schedule]) -> tuple[Schedule, ...]:
        return (*graphs.values(), self._update)

    def _with_homes(
        self, graphs: Mapping[str, Schedule], placement: Placement
    ) -> tuple[Value, ...]:
        """Return the managed values of ``graphs``, and those states that have been placed."""
        values = managed_values(self._all(graphs), self._state_values(graphs))
        return tuple(each for each in values if each.name in placement.homes)

    def _state_values(
        self, graphs: Mapping[str, Schedule], names: Sequence[str] | None = None
    ) -> tuple[Value, ...]:
        """Return the states called ``names`` of all parameters, by default the expected ones."""
        names = (self._states or EXPECTED_STATES) if names is None else names
        precision = self._options.precision
        trained = [
            (parameter_of(each), each.nbytes)
            for each in managed_values(self._all(graphs))
            if each.role is Role.GRADIENT
        ]
        return tuple(
            Value(f"{param}:{kind}", state_bytes, Role.STATE)
            for param, nbytes in trained
            for kind, state_bytes in precision.forecast(names, nbytes, self._itemsizes.get(param))
        )

    def _replan(self, graphs: Mapping[str, Schedule], states: Sequence[str]) -> None:
        before = self._states, self._begins_early
        self._states = tuple(states)
        try:
            chosen = self._choose(graphs)
            self._begins_early = chosen.begins_early
            plans = {name: self._plan(each, chosen) for name, each in graphs.items()}
        except ValueError:
            self._states, self._begins_early = before
            raise
        self._graphs, self._plans = dict(graphs), plans
        self._settle_for(chosen)

    def _settle_for(self, chosen: Chosen) -> None:
        """Place everything as ``chosen``; what updates ask for time and again is found once."""
        self.placement, self.seconds = chosen.placement, chosen.seconds
        self.values = self._with_homes(self._graphs, self.placement)
        self.update_target = target_for(self._update, self.placement, self.values, self.io_target)

    def _plan(self, captured: Schedule, by: Chosen) -> GraphPlan:
        values = self._with_homes(by.graphs, by.placement)
        source = by.graphs[captured.name]
        target = target_for(source, by.placement, values, self.io_target)
        known = self._plans.get(captured.name)
        if known is not None and known.is_for(captured, source, target):
            return known
        plan = by.plans.get(captured.name) or run_within_budget(self.pipeline, source, target)
        return GraphPlan.of(captured, source, target, plan)

    def _choose(self, graphs: Mapping[str, Schedule]) -> Chosen:
        """Place all values; if states that are only expected have no room, without them.

        Certain are masters, and the states of optimizers that there are: a budget without room
        for them is refused now, not in their first step.  Where times are known, the plans that
        were compared for it come with the placement.
        """
        check_host(self._options, managed_values(self._all(graphs)))
        if not self._states:
            with suppress(DoesNotFit):
                return self._chosen(graphs, self._state_values(graphs))
            self._states = self._foreseen_states()
        certain = self._state_values(graphs, self._states)
        try:
            return self._chosen(graphs, certain)
        except DoesNotFit as error:
            raise self._refusal(error, graphs, certain) from None

    def _chosen(self, graphs: Mapping[str, Schedule], states: tuple[Value, ...]) -> Chosen:
        asked = self._options.early_update
        chosen = self._chosen_with(graphs, states, begins_early=asked is True)
        if asked != "auto" or chosen.seconds is None:
            return chosen
        try:
            early = self._chosen_with(graphs, states, begins_early=True)
        except DoesNotFit:  # not beside what is set aside for it
            return chosen
        assert early.seconds is not None, "the same kernels have the same times"
        return early if early.seconds < (1 - EARLY_GAIN) * chosen.seconds else chosen

    def _chosen_with(
        self, graphs: Mapping[str, Schedule], states: tuple[Value, ...], *, begins_early: bool
    ) -> Chosen:
        target = self._target(begins_early=begins_early)
        early_bytes = self._early_bytes(begins_early=begins_early)
        chosen = self._choosing.of(graphs, self._update, states, target, early_bytes)
        return replace(chosen, begins_early=begins_early)

    def _refusal(
        self, error: DoesNotFit, graphs: Mapping[str, Schedule], states: Sequence[Value]
    ) -> ValueError:
        if error.option != "device_budget":
            values = managed_values(self._all(graphs), states)
            return no_room_at_home(error, self._options, values)
        return no_room_on_device(self._options, self._least(graphs, states))

    def _least(
        self, graphs: Mapping[str, Schedule], states: Sequence[Value], enough: int = 0
    ) -> Smallest:
        """Return the least device budget for ``graphs`` besides the I/O buffers."""
        target = replace(self.io_target, reserved_bytes=0)
        return self._choosing.least(graphs, self._update, tuple(states), target, enough)

    def smallest_bytes(self, schedules: Iterable[Schedule], enough: int = 0) -> int:
        """Return the least ``device_budget`` for ``schedules`` alone, or one up to ``enough``."""
        graphs, set_aside = {each.name: each for each in schedules}, self._options.set_aside
        beside = enough - set_aside.nbytes(enough) if enough else 0
        least = self._least(graphs, self._state_values(graphs), beside)
        return set_aside.budget_beside(least.bytes)

    def has_room_for(self, schedules: Iterable[Schedule]) -> bool:
        """Whether ``schedules`` alone have a placement that keeps the budgets."""
        graphs = {each.name: each for each in schedules}
        before = self._states
        try:
            self._choose(graphs)
        except BudgetError:
            return False
        finally:
            self._states = before
        return True
