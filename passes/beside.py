"""Beside: how long an iteration takes whose update begins while backward still runs.

A second thread takes schedules of its own one by one (`docs/update.md`): each when a step of the
first thread is over.  Both ask the same channels, first come, first served, and their kernels
share one processor, so what they gain is that copies of the one run beside kernels of the other.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zcompile.ir import (
    Channel,
    Fetch,
    Hardware,
    KernelSeconds,
    Offload,
    Release,
    Schedule,
    Update,
    Wait,
    channel_of,
)
from zcompile.passes.clock import COMPUTE, UPDATE, Clock, Work
from zcompile.passes.simulate import seconds_of


@dataclass(frozen=True, slots=True)
class Beside:
    """A schedule for the second thread, which may begin when a step of the first is over.

    That is the step ``step`` of its graph number ``graph``.
    """

    schedule: Schedule
    graph: int
    step: int


@dataclass(frozen=True, slots=True)
class Together:
    """One run of two threads.

    ``joined_s`` is how long the first waited at last for the second, ``busy_s`` how long each
    channel had something to move.
    """

    seconds: float
    joined_s: float
    busy_s: Mapping[Channel, float]


def simulate_beside(
    schedules: Sequence[Schedule],
    beside: Sequence[Beside],
    kernel_seconds: KernelSeconds,
    hardware: Hardware,
) -> Together:
    """Return how long ``schedules`` take with ``beside`` on a second thread, until both are done.

    Raises ``ValueError`` as `simulate` does.
    """
    clock = Clock(hardware)
    passed: set[tuple[int, int]] = set()
    first = _First(schedules, kernel_seconds, clock, passed)
    second = _second(beside, kernel_seconds, clock, passed)
    _run((first.steps(), second), clock)
    joined_s = clock.now - first.end_s
    return Together(clock.now, joined_s, clock.busy_s)


Blocked = Generator[Work | None, None, None]
"""A thread: it yields what it waits for, and is taken up when that has landed.

``None`` is a step of the other thread: it is asked again after each thing that ends.
"""


def _run(threads: Sequence[Blocked], clock: Clock) -> None:
    """Let ``threads`` run to their ends, whichever can go on first."""
    waiting: list[tuple[Blocked, Work | None]] = [(thread, None) for thread in threads]
    while waiting:
        went_on = False
        still: list[tuple[Blocked, Work | None]] = []
        for thread, work in waiting:
            if work is not None and not work.landed:
                still.append((thread, work))
                continue
            for now in thread:
                went_on = went_on or now is not None
                still.append((thread, now))
                break
            else:
                went_on = True
        waiting = still
        if waiting and not went_on:
            clock.go_on()


class _First:
    """The first thread; ``passed`` are the steps that are over, by graph and step."""

    def __init__(
        self,
        schedules: Sequence[Schedule],
        kernel_seconds: KernelSeconds,
        clock: Clock,
        passed: set[tuple[int, int]],
    ) -> None:
        self._schedules = schedules
        self._kernel_seconds = kernel_seconds
        self._clock = clock
        self._passed = passed
        self.end_s = 0.0

    def steps(self) -> Blocked:
        for graph, schedule in enumerate(self._schedules):
            for step, work in _works(schedule, self._kernel_seconds, self._clock):
                if work is not None and not work.landed:
                    yield work
                self._passed.add((graph, step))
        self.end_s = self._clock.now


def _second(
    beside: Sequence[Beside],
    kernel_seconds: KernelSeconds,
    clock: Clock,
    passed: set[tuple[int, int]],
) -> Blocked:
    for each in beside:
        while (each.graph, each.step) not in passed:
            yield None
        for _, work in _works(each.schedule, kernel_seconds, clock):
            if work is not None and not work.landed:
                yield work


def _works(
    schedule: Schedule, kernel_seconds: KernelSeconds, clock: Clock
) -> Iterator[tuple[int, Work | None]]:
    """Take the steps one by one; yield each with what has to be over before the next."""
    nbytes = {value.name: value.nbytes for value in schedule.values}
    copies: dict[int, Work] = {}
    for at, step in enumerate(schedule.steps):
        match step:
            case Fetch() | Offload():
                copies[step.ticket] = clock.ask(channel_of(step), step.value, nbytes[step.value])
                yield at, None
            case Wait():
                yield at, copies[step.ticket]
            case Release():
                yield at, None if step.after is None else copies[step.after]
            case _:
                activity = UPDATE if isinstance(step, Update) else COMPUTE
                yield at, clock.begin(activity, seconds_of(schedule, step, kernel_seconds))
