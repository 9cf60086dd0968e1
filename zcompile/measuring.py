"""Measures the kernels of a model in its first iterations, so that plans go by their times."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from zcompile.ir import Schedule
from zcompile.runtime.executor import Executor
from zcompile.runtime.stopwatch import Stopwatch

WARM_UP = 1
"""The first run of a plan is not measured: it touches memory that nobody has touched before."""

E = TypeVar("E", bound=Executor | None)

Gaps = tuple[float, ...]

Measured = Mapping[str, tuple[Schedule, tuple[Gaps, ...]]]
"""By graph: the plan that ran, and of each of its runs what passed between its moves."""


class Measuring:
    """Watches every run of every plan until ``num_iterations`` have ended; none if it is 0."""

    def __init__(self, num_iterations: int) -> None:
        self._left = num_iterations
        self._runs: dict[str, tuple[Schedule, list[Gaps]]] = {}

    @contextmanager
    def watching(
        self, plan: Schedule, executor: E, sizes: object = None
    ) -> Generator[E | Stopwatch]:
        """Lend an executor for one run of ``plan``, which is measured if it ends well.

        A plan that moves nothing needs no executor.  Runs of graphs whose ``sizes`` vary are not
        measured: what one call takes says little of another's.
        """
        if self._left <= 0 or sizes:
            yield executor
        elif executor is None:
            start = time.perf_counter()
            yield executor
            self._note(plan, (time.perf_counter() - start,))
        else:
            watch = Stopwatch(executor)
            yield watch
            self._note(plan, tuple(watch.stop()))

    def _note(self, plan: Schedule, gaps: Gaps) -> None:
        known, runs = self._runs.get(plan.name, (plan, []))
        if known is not plan:  # it was replaced meanwhile: what was measured is another's
            runs = []
        self._runs[plan.name] = plan, [*runs, gaps]

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
