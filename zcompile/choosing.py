"""Where a model's values shall live: by time where the machine is known, otherwise by bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zcompile.ir import Schedule, Target, Value
from zcompile.passes.fastest import Model, choose, in_order
from zcompile.passes.pins import Pin
from zcompile.passes.pipeline import Pipeline, Plan
from zcompile.passes.place import place
from zcompile.passes.placement import Placement
from zcompile.timing import Timing


@dataclass(frozen=True, slots=True)
class _Asked:
    """All that an answer depends on."""

    graphs: tuple[Schedule, ...]
    states: tuple[Value, ...]
    target: Target
    is_timed: bool


class Choosing:
    """Chooses placements for one planner, and remembers the last answer.

    A planner asks again when an optimizer makes its states, and those are mostly the ones that
    were expected.
    """

    def __init__(self, timing: Timing, pipeline: Pipeline, pins: tuple[Pin, ...]) -> None:
        self._timing = timing
        self._pipeline = pipeline
        self._pins = pins
        self._last: tuple[_Asked, Placement, Mapping[str, Plan]] | None = None

    def of(
        self,
        graphs: Mapping[str, Schedule],
        room: Schedule,
        states: tuple[Value, ...],
        target: Target,
    ) -> tuple[Placement, Mapping[str, Plan]]:
        """Return homes for all values, and the plans of those graphs that were made for it.

        ``room`` is a further graph for which any placement leaves room.  Raises ``DoesNotFit``.
        """
        timed = self._timing.of_graphs(graphs, target)
        asked = _Asked((*graphs.values(), room), states, timed or target, timed is not None)
        if self._last is None or self._last[0] != asked:
            self._last = (asked, *self._answer(graphs, room, states, target, timed))
        return self._last[1:]

    def _answer(
        self,
        graphs: Mapping[str, Schedule],
        room: Schedule,
        states: tuple[Value, ...],
        target: Target,
        timed: Target | None,
    ) -> tuple[Placement, Mapping[str, Plan]]:
        if timed is None:
            return place((*graphs.values(), room), states, self._pins, target), {}
        model = Model(in_order(graphs.values()), states, self._pins, (room,))
        choice = choose(model, timed, self._timing.pipelines(self._pipeline))
        return Placement(choice.best.placement.homes, choice.verdicts), choice.best.plans
