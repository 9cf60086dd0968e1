"""Fastest: try placements and pipelines on a machine that is known, and keep the fastest.

Every candidate is a whole plan of the iteration that keeps the budgets.  The plain placement with
the plain pipeline is always among them, so the choice is never slower than that by simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from zcompile.ir import Role, Schedule, Target, Value
from zcompile.passes.ahead import WINDOW_SHARE, Ahead, ahead
from zcompile.passes.beside import simulate_beside
from zcompile.passes.cycle import cycle_of
from zcompile.passes.expected import UPDATE_ROOM, ExpectedUpdate, excerpt, expected_update, streamed
from zcompile.passes.neighbours import Change, changed, changes
from zcompile.passes.pins import Pin
from zcompile.passes.pipeline import (
    TIMED,
    Pipeline,
    Plan,
    run_fastest,
)
from zcompile.passes.place import Preference, place
from zcompile.passes.placement import (
    DoesNotFit,
    Placement,
    Verdict,
    managed_values,
    resident_bytes,
    target_for,
)
from zcompile.passes.preferences import preferences, whole_bundles
from zcompile.passes.relaxation import SAMPLES
from zcompile.passes.simulate import simulate

MANY_KERNELS = 600
"""Of larger iterations only the plain placement is planned by a second pipeline."""

VERY_MANY_KERNELS = 5_000
"""Of even larger ones the plain placement is planned by the plain pipeline only."""

MAX_PLACEMENTS = 12

TRIED_KERNELS = 6_000
"""As many placements are tried as have so many kernels together; at least two."""

MAX_NEIGHBOURS = 12
"""How many small changes to the best placement are tried, of iterations that are not large."""

LEAST_GAIN = 0.002
"""A change that takes less than this share off the time is not kept: others may take more."""

NUM_FINALISTS = 2
"""How many placements, besides the plain one, are planned by every pipeline."""

MAX_WINDOW_BYTES = 48 << 20

MAX_PIECES = 100
"""An update is cut into about so many pieces at the most; more change its time but little."""

MAX_BUCKETS = 400
"""Of an update with more buckets than this some are timed for all."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is planned: captured graphs in the order in which an iteration runs them.

    ``states`` are the optimizer's.  ``rooms`` are further graphs for which any placement has to
    leave room.  A graph that runs several times is named several times.  ``early_bytes`` are set
    aside of the device for updates that begin while backward runs; 0 where none may.
    """

    graphs: tuple[Schedule, ...]
    states: tuple[Value, ...]
    pins: tuple[Pin, ...] = ()
    rooms: tuple[Schedule, ...] = (UPDATE_ROOM,)
    early_bytes: int = 0

    @property
    def distinct(self) -> tuple[Schedule, ...]:
        """Every graph once."""
        return tuple({graph.name: graph for graph in self.graphs}.values())

    @property
    def values(self) -> tuple[Value, ...]:
        """Every managed value."""
        return managed_values((*self.distinct, *self.rooms), self.states)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to plan the iteration, and how long it takes by simulation.

    ``update`` is what is left to the step when ``num_early`` of its parts have begun before.
    """

    preference: Preference
    placement: Placement
    plans: Mapping[str, Plan]
    update: Schedule
    seconds: float
    num_early: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest candidate, and why each value is where it is.

    ``compared`` are the candidates in the order in which they were tried, the plain one first.
    """

    best: Candidate
    compared: tuple[Candidate, ...]
    verdicts: tuple[Verdict, ...]


def in_order(graphs: Iterable[Schedule]) -> tuple[Schedule, ...]:
    """Return ``graphs`` as an iteration runs them: backward goes back the way forward came.

    A graph that makes gradients is a backward one.
    """
    forward: list[Schedule] = []
    backward: list[Schedule] = []
    for graph in graphs:
        makes = any(value.role is Role.GRADIENT for value in graph.values)
        (backward if makes else forward).append(graph)
    return (*forward, *reversed(backward))


def choose(
    model: Model,
    target: Target,
    pipelines: Sequence[Pipeline] = TIMED,
    samples: int = SAMPLES,
) -> Choice:
    """Return the fastest plan of ``model`` on the hardware of ``target``.

    The placements are compared by the last of ``pipelines``; the best of them, and the plain
    one, are planned by all, or of a large iteration the plain one by the first.  Of a very large
    one the plain placement is planned by the first pipeline alone.  Where it is not large, small
    changes to the best placement are tried at last (`zcompile.passes.neighbours`).

    Raises ``DoesNotFit`` if no placement keeps the budgets, ``ValueError`` if the target has no
    hardware or lacks the seconds of a kernel.
    """
    hardware = target.hardware
    if hardware is None:
        raise ValueError("the target has no hardware to compare plans by")
    update = expected_update(model.values, hardware)
    seconds = {**target.kernel_seconds, update.schedule.name: update.seconds}
    runs = (*model.graphs, update.schedule)
    cycle = cycle_of(runs, seconds, window_bytes=window_bytes(target))
    num_kernels = len(cycle.kernels)
    num = min(MAX_PLACEMENTS, max(2, TRIED_KERNELS // max(1, num_kernels)))
    trial = _Trial(model, target, update)
    found: list[Candidate] = []
    bundled = whole_bundles(model.values) if model.early_bytes else ()
    for preference in chain(islice(preferences(cycle, hardware, target, samples), num), bundled):
        placement = trial.place(preference)
        if all(placement.homes != other.placement.homes for other in found):
            is_plain = not found and num_kernels > VERY_MANY_KERNELS
            tried = pipelines[:1] if is_plain else pipelines[-1:]
            found.append(trial.plan(preference, placement, tried))
    finalists = found[:1] if num_kernels <= VERY_MANY_KERNELS else []
    if num_kernels <= MANY_KERNELS:
        finalists += sorted(found[1:], key=_seconds)[:NUM_FINALISTS]
    final = pipelines if num_kernels <= MANY_KERNELS else pipelines[:1]
    finals = [trial.plan(each.preference, each.placement, final) for each in finalists]
    best = min((*finals, *found), key=_seconds)
    near: tuple[Candidate, ...] = ()
    if num_kernels <= MANY_KERNELS:
        same = next(each for each in found if each.placement.homes == best.placement.homes)
        near = trial.improved(same, pipelines)
    best = min((best, *near), key=_seconds)
    return Choice(best, (*found, *finals, *near), tuple(_verdicts(best, (*finals, *found)[0])))


def seconds_of(
    model: Model,
    target: Target,
    placement: Placement,
    plans: Mapping[str, Plan],
    pipelines: Sequence[Pipeline] = TIMED,
) -> float:
    """Return the seconds of an iteration by ``plans`` that there are, on the target's hardware.

    To be compared with a `Candidate`: the update is the one that ``placement`` leads to.
    """
    hardware = target.hardware
    assert hardware is not None, "without hardware nothing has a time"
    update = expected_update(model.values, hardware)
    timed = {
        name: replace(
            plan, seconds=simulate([plan.schedule], target.kernel_seconds, hardware).seconds
        )
        for name, plan in plans.items()
    }
    return _Trial(model, target, update).took(placement, timed, pipelines).seconds


def window_bytes(target: Target) -> int:
    """Return the device bytes that one piece of an update takes, as the optimizer cuts them."""
    if target.device_budget is None:
        return MAX_WINDOW_BYTES
    room = max(0, target.device_budget - target.reserved_bytes)
    return max(1, min(MAX_WINDOW_BYTES, room // WINDOW_SHARE))


@dataclass(frozen=True, slots=True)
class _Took:
    """An iteration by simulation; ``num_early`` is how many pieces of the update begin early."""

    update: Schedule
    seconds: float
    num_early: int


@dataclass(frozen=True, slots=True)
class _Trial:
    """Plans candidates of one model."""

    model: Model
    target: Target
    update: ExpectedUpdate

    def place(self, preference: Preference) -> Placement:
        graphs = (*self.model.distinct, *self.model.rooms)
        return place(graphs, self.model.states, self.model.pins, self.target, preference)

    def plan(
        self, preference: Preference, placement: Placement, pipelines: Sequence[Pipeline]
    ) -> Candidate:
        values = self.model.values
        targets = {
            graph.name: target_for(graph, placement, values, self.target)
            for graph in self.model.distinct
        }
        plans = {
            graph.name: run_fastest(pipelines, graph, targets[graph.name])
            for graph in self.model.distinct
        }
        took = self.took(placement, plans, pipelines)
        return Candidate(preference, placement, plans, took.update, took.seconds, took.num_early)

    def improved(self, best: Candidate, pipelines: Sequence[Pipeline]) -> tuple[Candidate, ...]:
        """Return the best neighbour of ``best`` that is found, planned by all; nothing if none is.

        Neighbours are compared, as placements are, by the last of ``pipelines``.  A change that
        helped is made again, and one that did not is not tried twice.
        """
        values = self.model.values
        start = best
        useless: set[Change] = set()
        for _ in range(MAX_NEIGHBOURS):
            possible = changes(best.placement, values)
            change = next((each for each in possible if each not in useless), None)
            if change is None:
                break
            preference = changed(best.preference, best.placement, values, change)
            try:
                placement = self.place(preference)
            except DoesNotFit:  # in this order holes are left, and no slower tier takes the rest
                useless.add(change)
                continue
            if placement.homes != best.placement.homes:
                candidate = self.plan(preference, placement, pipelines[-1:])
                if candidate.seconds < best.seconds * (1 - LEAST_GAIN):
                    best = candidate
                    continue
            useless.add(change)
        if best is start:
            return ()
        return (self.plan(best.preference, best.placement, pipelines),)

    def took(
        self, placement: Placement, plans: Mapping[str, Plan], pipelines: Sequence[Pipeline]
    ) -> _Took:
        """Return how long an iteration by ``plans`` takes, and the update that belongs to it."""
        early = self._early(placement, plans, pipelines)
        left = self.update if early is None else early.left
        update, update_s = self._update(left, placement, self.model.values, pipelines)
        seconds = update_s + self._graphs_s(plans, early)
        return _Took(update, seconds, 0 if early is None else len(early.beside))

    def _early(
        self, placement: Placement, plans: Mapping[str, Plan], pipelines: Sequence[Pipeline]
    ) -> Ahead | None:
        """Return what begins early, if anything may; of a very large update that is not known."""
        window_bytes = self.model.early_bytes
        if not window_bytes or len(self.update.schedule.steps) > MAX_BUCKETS:
            return None
        runs = [plans[graph.name].schedule for graph in self.model.graphs]
        target = replace(self.target, homes=placement.homes)

        def plan(schedule: Schedule, room: Target) -> Schedule:
            return run_fastest(pipelines, schedule, room).schedule

        return ahead(self.update, runs, target, window_bytes, plan)

    def _graphs_s(self, plans: Mapping[str, Plan], early: Ahead | None) -> float:
        """Return how long it takes until the graphs, and what began early, are over."""
        if early is None or not early.beside:
            return sum(_took(plans[graph.name]) for graph in self.model.graphs)
        assert self.target.hardware is not None
        runs = [plans[graph.name].schedule for graph in self.model.graphs]
        seconds = {**self.target.kernel_seconds, **early.seconds}
        return simulate_beside(runs, early.beside, seconds, self.target.hardware).seconds

    def _update(
        self,
        update: ExpectedUpdate,
        placement: Placement,
        values: Sequence[Value],
        pipelines: Sequence[Pipeline],
    ) -> tuple[Schedule, float]:
        """Return ``update``, expected, as planned, or an excerpt of it, and its seconds.

        The optimizer cuts it to what is left beside all device homes.
        """
        reserved = self.target.reserved_bytes + resident_bytes(placement, values)
        target = replace(
            self.target, reserved_bytes=reserved, host_budget=None, host_reserved_bytes=0
        )
        piece_bytes = self._piece_bytes(target)
        own, homes = streamed(update, placement.homes, piece_bytes)
        assert target.hardware is not None
        some = excerpt(own, homes, target.hardware, MAX_BUCKETS)
        schedule = some.update.schedule
        target = replace(target, homes=homes, kernel_seconds={schedule.name: some.update.seconds})
        planned = run_fastest(pipelines, schedule, target)
        return planned.schedule, some.seconds(_took(planned))

    def _piece_bytes(self, target: Target) -> int:
        """Return the size of a piece: larger ones than the optimizer's if those were too many."""
        total = sum(each.nbytes for each in self.update.schedule.values)
        window = window_bytes(target)
        room = max(0, (target.device_budget or 0) - target.reserved_bytes) // WINDOW_SHARE
        return max(window, min(room, total // MAX_PIECES))


def _took(plan: Plan) -> float:
    assert plan.seconds is not None, "whatever was compared by time has one"
    return plan.seconds


def _seconds(candidate: Candidate) -> float:
    return candidate.seconds


def _verdicts(best: Candidate, plain: Candidate) -> Iterable[Verdict]:
    """Yield the verdicts of the placement, each with what the plain one would have cost."""
    saved_s = plain.seconds - best.seconds
    for verdict in best.placement.verdicts:
        other = plain.placement.homes[verdict.value]
        if other is verdict.tier or saved_s <= 0:
            yield verdict
            continue
        why = f"; {other} by the plain order, which takes {saved_s:.3g} s more an iteration"
        yield replace(verdict, reason=verdict.reason + why)
