"""Simulate: how long a plan takes on a machine, step by step, without that machine.

One thread takes the steps in order, as the executors do.  A kernel occupies it for its time; a
fetch and an offload only join the queue of their channel; a wait, and a release after an
offload, hold it up until the copy has landed.  Each channel moves one copy at a time, first in,
first out.  What runs at the same time shares resources (`zcompile.passes.sharing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zcompile.ir import (
    Channel,
    Fetch,
    Hardware,
    Kernel,
    KernelSeconds,
    Offload,
    Release,
    Schedule,
    Update,
    Wait,
    channel_of,
    kernel_name,
)
from zcompile.passes.clock import COMPUTE, UPDATE, Clock, Move, Work


class StepTime(NamedTuple):
    """When the executing thread took a step and was done with it, in seconds.

    ``exposed_s`` of it went to waiting for a copy or, in a kernel, to sharing the machine.
    """

    start_s: float
    end_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class Simulated:
    """One run of one schedule: a time for each step, and its copies in order of landing."""

    schedule: str
    start_s: float
    end_s: float
    steps: tuple[StepTime, ...]
    moves: tuple[Move, ...]

    @property
    def exposed_s(self) -> float:
        return sum(step.exposed_s for step in self.steps)


@dataclass(frozen=True, slots=True)
class Simulation:
    """Graphs run one after another.

    ``busy_s`` is how long each channel had something to move.
    """

    graphs: tuple[Simulated, ...]
    busy_s: Mapping[Channel, float]

    @property
    def seconds(self) -> float:
        return self.graphs[-1].end_s if self.graphs else 0.0

    @property
    def exposed_s(self) -> float:
        return sum(graph.exposed_s for graph in self.graphs)


def simulate(
    schedules: Sequence[Schedule], kernel_seconds: KernelSeconds, hardware: Hardware
) -> Simulation:
    """Return when every step of ``schedules``, run in this order, happens on ``hardware``.

    Raises ``ValueError`` that names what is missing: the time of a kernel, or the link of a
    channel that a step uses.
    """
    clock = Clock(hardware)
    graphs = tuple(_run(each, kernel_seconds, clock) for each in schedules)
    return Simulation(graphs, clock.busy_s)


def _run(schedule: Schedule, kernel_seconds: KernelSeconds, clock: Clock) -> Simulated:
    start_s = clock.now
    first = len(clock.landed)
    nbytes = {value.name: value.nbytes for value in schedule.values}
    copies: dict[int, Work] = {}
    steps: list[StepTime] = []
    for step in schedule.steps:
        before = clock.now
        alone_s = 0.0
        match step:
            case Wait():
                clock.wait(copies[step.ticket])
            case Release():
                if step.after is not None:
                    clock.wait(copies[step.after])
            case Fetch() | Offload():
                copies[step.ticket] = clock.ask(channel_of(step), step.value, nbytes[step.value])
            case _:
                alone_s = seconds_of(schedule, step, kernel_seconds)
                clock.run(UPDATE if isinstance(step, Update) else COMPUTE, alone_s)
        steps.append(StepTime(before, clock.now, max(0.0, clock.now - before - alone_s)))
    return Simulated(schedule.name, start_s, clock.now, tuple(steps), tuple(clock.landed[first:]))


def seconds_of(schedule: Schedule, kernel: Kernel, kernel_seconds: KernelSeconds) -> float:
    """Return how long ``kernel`` takes alone; ``ValueError`` if that is not known."""
    name = kernel_name(kernel)
    seconds = kernel_seconds.get(schedule.name, {}).get(name)
    if seconds is None:
        raise ValueError(f"{schedule.name}: no time is known for the kernel {name!r}")
    return seconds
