"""Where a model's values shall live: by time where the machine is known, otherwise by bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from zcompile.ir import Schedule, Target, Value
from zcompile.passes.fastest import Model, choose, in_order, seconds_of
from zcompile.passes.pins import Pin
from zcompile.passes.pipeline import Pipeline, Plan
from zcompile.passes.place import place
from zcompile.passes.placement import Placement
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
    """Homes for all values, and the plans of those graphs that were made for it.

    Where times are known an iteration takes ``seconds`` by simulation.  ``begins_early`` says
    whether updates may begin while backward runs.
    """

    placement: Placement
    plans: Mapping[str, Plan]
    seconds: float | None = None
    begins_early: bool = False


class Choosing:
    """Chooses placements for one planner, and remembers the last answers.

    A planner asks again when an optimizer makes its states, and those are mostly the ones that
    were expected.
    """

    def __init__(self, timing: Timing, pipeline: Pipeline, pins: tuple[Pin, ...]) -> None:
        self._timing = timing
        self._pipeline = pipeline
        self._pins = pins
        self._last: deque[tuple[_Asked, Chosen]] = deque(maxlen=REMEMBERED)

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
        every = (*graphs.values(), room)
        asked = _Asked(every, states, timed or target, timed is not None, early_bytes)
        for known, chosen in self._last:
            if known == asked:
                return chosen
        chosen = self._answer(graphs, room, states, target, timed, early_bytes)
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
        model = self._model(graphs, room, states, early_bytes)
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

    def _answer(
        self,
        graphs: Mapping[str, Schedule],
        room: Schedule,
        states: tuple[Value, ...],
        target: Target,
        timed: Target | None,
        early_bytes: int,
    ) -> Chosen:
        if timed is None:
            return Chosen(place((*graphs.values(), room), states, self._pins, target), {})
        model = self._model(graphs, room, states, early_bytes)
        choice = choose(model, timed, self._timing.pipelines(self._pipeline))
        best = choice.best
        placement = Placement(best.placement.homes, choice.verdicts)
        return Chosen(placement, best.plans, best.seconds, early_bytes > 0)
