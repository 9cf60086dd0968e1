"""Several things measured in turn, so that what else the machine does meets all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter, process_time

import torch

Runs = Mapping[str, Callable[[], float]]
"""By name: what is to be measured; each call runs it once and returns the seconds it took."""

Samples = Mapping[str, Sequence[float]]
"""By name: the seconds of every round."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several runs, and the quartiles around it."""

    median: float
    low: float
    high: float
    num_runs: int

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """Summarise ``numbers``, of which there is at least one."""
        if len(numbers) == 1:
            return cls(numbers[0], numbers[0], numbers[0], 1)
        low, _, high = quantiles(numbers, n=4, method="inclusive")
        return cls(median(numbers), low, high, len(numbers))


@dataclass(frozen=True, slots=True)
class Pace:
    """Measure for ``seconds``, and at least ``least_rounds`` times."""

    seconds: float
    least_rounds: int


def alternate(runs: Runs, pace: Pace) -> Samples:
    """Run all of ``runs`` in turn, every other round backwards; the first round is not counted."""
    names = list(runs)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for run in runs.values():
        run()
    end = perf_counter() + pace.seconds
    number = 0
    while number < pace.least_rounds or perf_counter() < end:
        for name in names if number % 2 else reversed(names):
            taken[name].append(runs[name]())
        number += 1
    return taken


def timed(call: Callable[[], object], count: int = 1) -> Callable[[], float]:
    """Return what makes ``count`` calls and tells the seconds of one."""

    def run() -> float:
        start = perf_counter()
        for _ in range(count):
            call()
        return (perf_counter() - start) / count

    return run


def cpu_share(call: Callable[[], object]) -> float:
    """Return how many processors this process keeps busy while ``call`` runs."""
    wall, cpu = perf_counter(), process_time()
    call()
    return (process_time() - cpu) / (perf_counter() - wall)


@contextmanager
def computing_with(threads: int) -> Generator[None]:
    """Let torch compute with so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
