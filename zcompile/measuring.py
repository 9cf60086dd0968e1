"""Measures the kernels of a model in its first iterations, so that plans go by their times."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from zcompile.ir import Schedule
from zcompile.runtime.executor import Executor
from zcompile.runtime.stopwatch import Stopwatch

WARM_UP = 1
"""The first run of a plan is not measured: it touches memory that nobody has touched before."""

Gaps = tuple[float, ...]

Measured = Mapping[str, tuple[Schedule, tuple[Gaps, ...]]]
"""By graph: the plan that ran, and of each of its runs what passed between its moves."""


class Measuring:
    """Watches every run of every plan until ``num_iterations`` have ended; none if it is 0."""

    def __init__(self, num_iterations: int) -> None:
        self._left = num_iterations
        self._runs: dict[str, tuple[Schedule, list[Gaps]]] = {}

    @contextmanager
    def watching(self, plan: Schedule, executor: Executor) -> Generator[Executor]:
        """Lend an executor for one run of ``plan``, which is measured if it ends well."""
        if self._left <= 0:
            yield executor
            return
        watch = Stopwatch(executor)
        yield watch
        known, runs = self._runs.get(plan.name, (plan, []))
        if known is not plan:  # it was replaced meanwhile: what was measured is another's
            runs = []
        self._runs[plan.name] = plan, [*runs, tuple(watch.stop())]

    def iteration_ended(self) -> Measured | None:
        """Count an iteration; return what was measured by graph when there have been enough.

        Once: afterwards, and before, it is ``None``.
        """
        if self._left <= 0:
            return None
        self._left -= 1
        if self._left > 0:
            return None
        found = {
            name: (plan, tuple(runs[WARM_UP:]))
            for name, (plan, runs) in self._runs.items()
            if len(runs) > WARM_UP
        }
        self._runs.clear()
        return found or None
