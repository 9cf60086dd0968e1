"""One compiled model: its plan for all its graphs, and what carries the plan out."""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from threading import RLock
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from zcompile.bridge import torch_private
from zcompile.bridge.capture import gradient_name
from zcompile.bridge.emit import Emitted
from zcompile.bridge.inductor import SegmentCompiler
from zcompile.bridge.sizes import Bindings
from zcompile.buckets import Buckets
from zcompile.emitting import Emissions
from zcompile.gradients import GradientWatch
from zcompile.graphs import Graph, Planned
from zcompile.hooks import weak_hook
from zcompile.ir import Schedule, Target, Tier
from zcompile.leaving import Leaving
from zcompile.measuring import Measured, Measuring
from zcompile.moving_in import MovingIn
from zcompile.opening import open_files
from zcompile.optim.foreseen import foreseen_states
from zcompile.optim.native import check_there
from zcompile.optim.takeover import Takeover
from zcompile.options import Options
from zcompile.passes.placement import Placement, before_moving
from zcompile.planner import Planner
from zcompile.precision import Precision
from zcompile.registry import Registry
from zcompile.runtime import libc
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.file_io import FileIO, choose
from zcompile.runtime.gradient_facts import GradientFacts
from zcompile.runtime.handles import Handles, Kept
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger, Snapshot
from zcompile.runtime.machine import Machine, MakeExecutor

MAX_ITERATIONS = 1000
"""How many iterations a session remembers for its statistics."""

RETAINED_FRACTION, MIN_RETAINED, MAX_RETAINED = 1024, 64 << 10, 4 << 20
"""The allocator may keep freed blocks of up to 1/1024 of the device budget, within bounds."""


class Session:
    """Runs the graphs of one model under one set of options.

    Everything about the model hangs here: the planner, the homes of its parameters, the
    arena, the account of bytes.  Nothing here keeps the model or its parameters alive.

    A parameter of several compiled models is at home with the one that ran last:
    ``all_sessions`` gives those that may have it.  ``handles`` are those of all sessions that
    may run each other's graphs.
    """

    def __init__(
        self,
        options: Options,
        make_executor: MakeExecutor = CpuExecutor,
        all_sessions: Callable[[], Iterable[Session]] = tuple,
        handles: Handles | None = None,
    ) -> None:
        check_there(options.precision)
        self.options = options
        self.choice = choose(FileIO(options.io))
        """How files are read and written, and why not better."""
        self._make_executor = make_executor
        self._all_sessions = all_sessions
        self.compiling = Registry()
        """The parameters of graphs that are about to be planned, before any is managed."""
        self.planner = Planner(options, partial(foreseen_states, self.compiling, options.precision))
        self.registry = Registry()
        self._gradients = GradientWatch(self)
        self.segments = SegmentCompiler()
        self._emitted = Emissions(self.planner, options.device_budget)
        self._handles = Handles() if handles is None else handles
        self._fitting: dict[str, set[Bindings]] = {}
        self.ledger = Ledger()
        self.leaving = Leaving(self.ledger)
        self.buckets = Buckets()
        self._settled: Placement | None = None
        self._resident_bytes = 0
        self._moving_in = MovingIn(self.registry)
        self._has_folder = False
        self._machine: Machine | None = None
        self._takeover: Takeover | None = None
        self._measuring = Measuring(options.measured_iterations)
        self._iterations: deque[Snapshot] = deque(maxlen=MAX_ITERATIONS)
        self._lock = RLock()
        on_step = register_optimizer_step_post_hook(weak_hook(self._after_step))
        weakref.finalize(self, on_step.remove)

    def announce(self, graphs: Sequence[Graph]) -> None:
        """Plan ``graphs`` with all those so far; ``BudgetError`` if no plan keeps the budget."""
        with self._lock:
            lenient = self.options.device_budget is None
            new = [each for each in graphs if each.name not in self._fitting]
            stale = self.planner.announce(
                [each.schedule(None, lenient=lenient) for each in new],
                {each.name: each.costs for each in new},
                {name: size for each in new for name, size in each.itemsizes.items()},
            )
            for name in stale:
                del self._fitting[name]
                self._emitted.forget(name)
            for each in graphs:
                self._fitting.setdefault(each.name, set())

    def run(self, graph: Graph, args: list[Any]) -> Sequence[Any]:
        """Run ``graph``; ``args`` is emptied on the way, so that each dies at its last use."""
        self.leaving.ran()
        with self._lock:
            self._check_folder()
            if graph.name not in self._fitting:
                for name, parameter in graph.managed(args).items():
                    self.compiling.add(name, parameter)
            self.announce([graph])
            self._fit(graph, args)
            kept = self._handles.among([args[at] for at in graph.saved.values()])
            planned = self._prepared(graph, args, kept)
            emitted = self._emitted.for_hooks(graph, planned)
        self.buckets.look(gradients_leave=planned.moves)
        if not emitted.dropped:
            return self._carry_out(graph, planned, emitted, args, kept)
        handle = self._handles.give(graph.keep(args, emitted.dropped, planned.brought))
        results = self._carry_out(graph, planned, emitted, args, kept)
        return graph.with_handle(results, emitted.dropped, handle)

    def _carry_out(
        self,
        graph: Graph,
        planned: Planned,
        emitted: Emitted,
        args: list[Any],
        kept: Kept | None,
    ) -> Sequence[Any]:
        """Run what was ``emitted``; ``kept`` is what forward's handle brings for it."""
        schedule = planned.schedule
        needs_machine = self._machine is not None or planned.moves
        bindings = graph.tensors(schedule, args, kept) if needs_machine else {}
        shapes = graph.bindings(args)
        if kept is not None:
            kept.check()
            args += kept.further(emitted.further)
        machine = self.machine if needs_machine else None
        with (
            # Graphs hold their casts.  AOTAutograd leaves autocast on for a backward that was
            # traced without; its types would then be none that was planned or expected.
            torch_private.outside_autocast(),
            nullcontext() if machine is None else machine.executing(schedule, bindings) as executor,
            # What a graph holds besides homes, arena and I/O buffers.
            self.ledger.holding(Tier.DEVICE, planned.passing_bytes),
            self._measuring.watching(schedule, executor, shapes) as watched,
        ):
            return emitted.module(watched, args)  # type: ignore[no-any-return]

    def _check_folder(self) -> None:
        """Refuse a folder that cannot be used before anything is moved, until it can be."""
        if not self._has_folder:
            self.options.check_folder()
            self._has_folder = True

    def _prepared(self, graph: Graph, args: Sequence[Any], kept: Kept | None) -> Planned:
        """Return the planned graph, with the parameters of the call at their homes."""
        while True:  # optimizers met on the way may bring states that nobody expected
            placement = self.planner.placement
            planned = self._emitted.of(graph, kept)
            self._settle(graph, args)
            if placement is self.planner.placement:
                return planned

    def planned(self) -> tuple[Planned, ...]:
        """Return every graph that has run, with its plan."""
        return self._emitted.planned()

    @property
    def planned_peak_bytes(self) -> int:
        """The most device bytes that any plan so far holds, those of updates included."""
        return max(self._emitted.peak_bytes, self.planner.peak_bytes)

    def total(self) -> Snapshot:
        """Return what was held, moved and waited for since the session began."""
        return self.ledger.snapshot()

    def iterations(self) -> tuple[Snapshot, ...]:
        """Return the same for each of the last iterations: from one optimizer step to the next."""
        return tuple(self._iterations)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self.end_iteration(optimizer)

    def end_iteration(self, optimizer: Optimizer) -> None:
        """Take stock after a step of an optimizer that holds parameters of this model."""
        groups: list[dict[str, Any]] = optimizer.param_groups
        params: list[Tensor] = [each for group in groups for each in group["params"]]
        if any(self.registry.name_of(each) is not None for each in params):
            if not self._iterations:
                for doubt in self.planner.doubts_about_pins():
                    warnings.warn(doubt, stacklevel=2)
                if self.options.device_budget is not None:
                    self.leaving.trained(params, self.is_in_a_graph)
            if self._machine is not None:
                self._machine.homes.trim()
                self.leaving.stepped(
                    optimizer, self.home_bytes(each for each in params if each.grad is not None)
                )
            self._iterations.append(self.ledger.lap())
            if measured := self._measuring.iteration_ended():
                self.correct(measured)

    def is_in_a_graph(self, parameter: Tensor) -> bool:
        """Whether a graph has ``parameter``, or has moved its memory along with another's."""
        sessions = (self, *self._all_sessions())
        named = any(each.registry.name_of(parameter) is not None for each in sessions)
        return named or any(each._houses(parameter) for each in sessions)

    def home_bytes(self, tensors: Iterable[Tensor] | None = None) -> int:
        """Return what ``tensors``, by default all parameters, weigh at home in files."""
        every = (each for _, each in self.registry) if tensors is None else tensors
        return sum(each.nbytes for each in every if self.rests_in(each) is Tier.NVME)

    @property
    def machine(self) -> Machine:
        """The acting parts, made when the first value has to leave the device."""
        with self._lock:
            if self._machine is None:
                self._machine = self._open()
                weakref.finalize(self, self._machine.close)
                may_begin_early = self.options.early_update is not False
                self._takeover = Takeover(self, may_begin_early=may_begin_early)
            return self._machine

    @property
    def early_bytes(self) -> int:
        """What updates may take of the device while backward runs; 0 if none may begin then."""
        return self.planner.early_bytes

    @property
    def takeover(self) -> Takeover:
        """What updates the parameters, made together with the machine."""
        assert self.machine is self._machine
        assert self._takeover is not None
        return self._takeover

    @property
    def early_updates(self) -> Mapping[str, int]:
        """How many updates of parameters have begun while backward ran, by what became of them."""
        return {} if self._takeover is None else self._takeover.early.counts()

    def _open(self) -> Machine:
        if self.options.device_budget is not None:
            share = self.options.device_budget // RETAINED_FRACTION
            libc.return_large_blocks_at_once(min(max(share, MIN_RETAINED), MAX_RETAINED))
        file, transfers = open_files(self.options, self.planner.io_block_bytes, self.ledger)
        return Machine(
            Homes(file, self.ledger, on_eager=self.leaving.read),
            transfers,
            self.ledger,
            self._make_executor,
            device_budget=self.options.device_budget,
        )

    @property
    def precision(self) -> Precision:
        """How parameters and their states are to be kept."""
        return self.options.precision

    def name_of(self, parameter: Tensor) -> str | None:
        """Return what ``parameter`` is called in the schedules; ``None`` if it is another's.

        It is if it never was in a schedule, or has gone home with another model since.
        """
        name = self.registry.name_of(parameter)
        return None if name is None or self.elsewhere(parameter) else name

    def elsewhere(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` rests in a home of another session."""
        return not self._houses(tensor) and any(
            each._houses(tensor) for each in self._all_sessions() if each is not self
        )

    def _houses(self, tensor: Tensor) -> bool:
        return self._machine is not None and self._machine.homes.find(tensor) is not None

    def facts_of(self, gradient: Tensor) -> GradientFacts | None:
        """Return what is known of gradients here, if ``gradient`` rests in a home here."""
        return self.machine.facts if self._houses(gradient) else None

    def knows(self, named: Mapping[str, Tensor]) -> bool:
        """Whether every one of these parameters has been in a schedule by its name."""
        return all(self.registry.has_called(each, name) for name, each in named.items())

    def tier_of(self, value: str) -> Tier:
        """Return the home of a managed value; a state is placed when first asked for."""
        with self._lock:
            parameter, _, state = value.rpartition(":")
            return self.planner.observe_state(parameter, state)

    def expect_states(self, states: Iterable[str]) -> None:
        """Take note of the states that an optimizer is about to make."""
        with self._lock:
            self.planner.expect_states(states)

    def overflow_tier(self) -> Tier:
        """Return where states go that no placement knows."""
        return Tier.NVME if self.options.nvme_dir is not None else Tier.DEVICE

    def gradient_tier(self, parameter: str) -> Tier:
        """Return the home of the gradient of a managed parameter."""
        return self.planner.placement.homes.get(gradient_name(parameter), Tier.DEVICE)

    def gradient_in_memory(self) -> None:
        """Take note that autograd has made a gradient in ordinary memory."""
        self.leaving.gradient()

    def target(self) -> Target:
        """Return what an update may use, also if much has yet to move to other homes."""
        now, planner = self._settled, self.planner
        return before_moving(planner.update_target, planner.values, now, planner.placement)

    def plan(self, schedule: Schedule, target: Target) -> Schedule:
        """Return ``schedule``, an update, as the passes plan it."""
        return self.planner.plan_update(schedule, target)

    def _fit(self, graph: Graph, args: Sequence[Any]) -> None:
        """Plan anew if a call has larger shapes than any before."""
        bindings = graph.bindings(args)
        if bindings and bindings not in self._fitting[graph.name]:
            lenient = self.options.device_budget is None
            self.planner.enlarge(graph.schedules(bindings, lenient=lenient))
            self._fitting[graph.name].add(bindings)

    def _settle(self, graph: Graph, args: Sequence[Any]) -> None:
        """Bring the parameters of a call to the homes that the placement gives them."""
        placement = self.planner.placement
        managed = graph.managed(args)
        newcomers = [self.registry.add(name, parameter) for name, parameter in managed.items()]
        if self._moving_in.bring(self, managed, placement.homes):
            if self._takeover is not None:
                self._takeover.meet()
        elif any(newcomers) and not self.precision.plain:
            self.takeover.meet()
        if self._machine is not None:
            for parameter in managed.values():
                self._gradients.add(parameter)
        self._account()

    def _account(self) -> None:
        """Count what rests on the device by the placement of now; copies make room for it."""
        if self.planner.placement is self._settled:
            return
        self._settled = self.planner.placement
        if self._machine is not None:
            self._machine.keep_at_most(0)
        resident_bytes = self.planner.resident_bytes
        self.ledger.drop(Tier.DEVICE, self._resident_bytes)
        self.ledger.hold(Tier.DEVICE, resident_bytes)
        self._resident_bytes = resident_bytes
        if self._machine is not None:
            self._machine.keep_beside_at_most(self.early_bytes)

    def correct(self, measured: Measured) -> bool:
        """Plan by what kernels took, between two iterations; say whether plans have changed."""
        with self._lock:
            if not self.planner.correct(measured):
                return False
            self._move_house()
            return True

    def _move_house(self) -> None:
        """Bring everything to the homes of another placement; what leaves the device goes first."""
        homes = self.planner.placement.homes
        own = {
            name: parameter
            for name, parameter in self.registry
            if name in homes and not self.elsewhere(parameter)
        }
        self.machine.keep_at_most(0)
        leaving = {name: each for name, each in own.items() if homes[name] is not Tier.DEVICE}
        self._moving_in.bring(self, leaving, homes)
        self.takeover.meet()
        self._moving_in.bring(self, own, homes)
        self._account()

    def rests_in(self, tensor: Tensor) -> Tier:
        """Return the tier that ``tensor`` is on now."""
        place = self._machine.homes.find(tensor) if self._machine else None
        return place.home.tier if place else Tier.DEVICE
