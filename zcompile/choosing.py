"""Where a model's values shall live: by time where the machine is known, otherwise by bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from zcompile.collector import sparing_the_collector
from zcompile.ir import Cost, Role, Schedule, Target, Tier, Value
from zcompile.passes.fastest import Model, choose, in_order, seconds_of
from zcompile.passes.pins import Pin, pin_of
from zcompile.passes.pipeline import Pipeline, Plan
from zcompile.passes.place import place
from zcompile.passes.placement import DoesNotFit, Placement, Verdict, managed_values
from zcompile.passes.recomputing import NOTHING, Again, Graphs, Recomputing, Way
from zcompile.passes.repeatable import Seconds, nominal_seconds
from zcompile.passes.smallest import Smallest, smallest_for_model
from zcompile.timing import Timing

REMEMBERED = 2
"""Answers that are kept: the planner may compare two."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """All that an answer depends on."""

    graphs: tuple[Schedule, ...]
    states: tuple[Value, ...]
    target: Target
    is_timed: bool
    early_bytes: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """Homes for all values, and what is to be planned: graphs with what runs again in them.

    ``plans`` are those of graphs that were made for the choice, and ``seconds`` what an
    iteration takes by simulation, where times are known.  ``begins_early`` says whether updates
    may begin while backward runs.
    """

    placement: Placement
    graphs: Mapping[str, Schedule]
    plans: Mapping[str, Plan] = field(default_factory=dict[str, Plan])
    seconds: float | None = None
    begins_early: bool = False


@dataclass(frozen=True, slots=True)
class _Question:
    """What is to be placed: ``graphs`` as captured, and ``room``, for which space is left."""

    graphs: Graphs
    room: Schedule
    states: tuple[Value, ...]
    target: Target
    is_timed: bool
    early_bytes: int

    @property
    def seconds(self) -> Seconds | None:
        """What kernels take, where that is known."""
        return self.target.kernel_seconds if self.is_timed else None


class Choosing:
    """Chooses placements for one planner, and remembers the last answers.

    A planner asks again when an optimizer makes its states, and those are mostly the ones that
    were expected.
    """

    def __init__(
        self,
        timing: Timing,
        pipeline: Pipeline,
        pins: tuple[Pin, ...],
        recompute: Way = "auto",
    ) -> None:
        self._timing = timing
        self._pipeline = pipeline
        self._pins = pins
        self._last: deque[tuple[_Asked, Chosen]] = deque(maxlen=REMEMBERED)
        self._way = recompute
        self._costs: dict[str, Mapping[str, Cost]] = {}

    def learn(self, costs: Mapping[str, Mapping[str, Cost]]) -> None:
        """Note by graph what each kernel costs: making values again is weighed by it."""
        self._costs |= costs

    def of(
        self,
        graphs: Mapping[str, Schedule],
        room: Schedule,
        states: tuple[Value, ...],
        target: Target,
        early_bytes: int = 0,
    ) -> Chosen:
        """Return where all values shall live.

        ``room`` is a further graph for which any placement leaves room.  ``early_bytes`` of what
        is reserved are for updates that begin while backward runs.  Raises ``DoesNotFit``.
        """
        timed = self._timing.of_graphs(graphs, target)
        is_timed = timed is not None
        every = (*graphs.values(), room)
        asked = _Asked(every, states, timed or target, is_timed, early_bytes)
        for known, chosen in self._last:
            if known == asked:
                return chosen
        question = _Question(graphs, room, states, timed or target, is_timed, early_bytes)
        chosen = self._answer(question)
        self._last.append((asked, chosen))
        return chosen

    def seconds_of(
        self,
        graphs: Mapping[str, Schedule],
        room: Schedule,
        states: tuple[Value, ...],
        target: Target,
        now: Chosen,
        early_bytes: int = 0,
    ) -> float | None:
        """Return what an iteration by the plans of ``now`` takes, as times are known by now."""
        timed = self._timing.of_graphs(graphs, target)
        if timed is None:
            return None
        model = self._model(now.graphs, room, states, early_bytes)
        pipelines = self._timing.pipelines(self._pipeline)
        return seconds_of(model, timed, now.placement, now.plans, pipelines)

    def _model(
        self,
        graphs: Mapping[str, Schedule],
        room: Schedule,
        states: tuple[Value, ...],
        early_bytes: int,
    ) -> Model:
        return Model(in_order(graphs.values()), states, self._pins, (room,), early_bytes)

    def least(
        self,
        graphs: Mapping[str, Schedule],
        room: Schedule,
        states: tuple[Value, ...],
        target: Target,
        enough_bytes: int = 0,
    ) -> Smallest:
        """Return the least device budget with which `of` succeeds; ``graphs`` must not be empty.

        One of ``enough_bytes`` is as good as a smaller one.
        """
        ways = iter(self._ways(graphs))
        found = self._smallest(next(ways), graphs, room, states, target)
        for each in ways:
            if found.bytes <= enough_bytes:
                break
            other = self._smallest(each, graphs, room, states, target)
            found = min(found, other, key=lambda one: one.bytes)
        return found

    def _smallest(
        self,
        again: Again,
        graphs: Graphs,
        room: Schedule,
        states: tuple[Value, ...],
        target: Target,
    ) -> Smallest:
        every = (*again.applied(graphs).values(), room)
        return smallest_for_model(every, states, self._pins, target)

    def _ways(self, graphs: Graphs) -> tuple[Again, ...]:
        """Return what may be made again, all that there is under each limit."""
        if self._way == "never":
            return (NOTHING,)
        full = self._recomputing(graphs).fullest()
        return full if full and self._way == "always" else (NOTHING, *full)

    def _recomputing(self, graphs: Graphs, seconds: Seconds | None = None) -> Recomputing:
        saved = (each for each in managed_values((*graphs.values(),)) if each.role is Role.SAVED)
        pinned = frozenset(each.name for each in saved if pin_of(each, self._pins) is not None)
        return Recomputing(graphs, seconds or nominal_seconds(self._costs), pinned)

    def _answer(self, question: _Question) -> Chosen:
        if self._way == "never":
            return self._chosen(question, NOTHING)
        recomputing = self._recomputing(question.graphs, question.seconds)
        if self._way == "always" and recomputing:
            return self._chosen(question, self._leanest(question))
        try:
            plain = self._chosen(question, NOTHING)
        except DoesNotFit:
            least = recomputing.least(lambda again: self._fits(question, again))
            if least is None:
                raise
            return self._chosen(question, least)
        candidates = [*self._candidates(question, recomputing, plain)]
        if question.is_timed:
            return min((plain, *candidates), key=lambda each: each.seconds or 0.0)
        return (plain, *candidates)[-1]

    def _leanest(self, question: _Question) -> Again:
        """Return what takes the fewest bytes of all that can be made again."""
        given = question.graphs, question.room, question.states, question.target
        return min(self._ways(question.graphs), key=lambda e: self._smallest(e, *given).bytes)

    def _candidates(
        self, question: _Question, recomputing: Recomputing, plain: Chosen
    ) -> Iterator[Chosen]:
        """Yield what to compare with the ``plain`` choice, in which nothing is made again."""
        if question.is_timed:
            tried = recomputing.to_compare() if _something_leaves(plain) else ()
        else:
            tried = (recomputing.cheaper(),) if _saved_leaves(plain) else ()
        for each in tried:
            if each.units and self._fits(question, each):
                yield self._chosen(question, each)

    def _fits(self, question: _Question, again: Again) -> bool:
        try:
            self._place(question, again)
        except DoesNotFit:
            return False
        return True

    def _place(self, question: _Question, again: Again) -> Placement:
        every = (*again.applied(question.graphs).values(), question.room)
        return place(every, question.states, self._pins, question.target)

    def _chosen(self, question: _Question, again: Again) -> Chosen:
        graphs = again.applied(question.graphs)
        verdicts = tuple(Verdict(name, Tier.DEVICE, why) for name, why in again.reasons())
        if not question.is_timed:
            found = self._place(question, again)
            placement = Placement(found.homes, (*found.verdicts, *verdicts))
            return Chosen(placement, graphs)
        model = self._model(graphs, question.room, question.states, question.early_bytes)
        with sparing_the_collector():
            choice = choose(model, question.target, self._timing.pipelines(self._pipeline))
        best = choice.best
        placement = Placement(best.placement.homes, (*choice.verdicts, *verdicts))
        return Chosen(placement, graphs, best.plans, best.seconds, question.early_bytes > 0)


def _something_leaves(chosen: Chosen) -> bool:
    return any(tier is not Tier.DEVICE for tier in chosen.placement.homes.values())


def _saved_leaves(chosen: Chosen) -> bool:
    values = managed_values((*chosen.graphs.values(),))
    homes = chosen.placement.homes
    return any(e.role is Role.SAVED and homes[e.name] is not Tier.DEVICE for e in values)
