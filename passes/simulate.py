"""Simulate: how long a plan takes on a machine, step by step, without that machine.

One thread takes the steps in order, as the executors do.  A kernel occupies it for its time; a
fetch and an offload only join the queue of their channel; a wait, and a release after an
offload, hold it up until the copy has landed.  Each channel moves one copy at a time, first in,
first out.  What runs at the same time shares resources (`zcompile.passes.sharing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zcompile.ir import (
    Channel,
    Compute,
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
from zcompile.ir.hardware import Shares
from zcompile.passes.sharing import speeds

COMPUTE, UPDATE = "compute", "update"
_DONE = 1e-12
"""Work below this many seconds is none: what is left of sums of floats."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """When the executing thread took a step and was done with it, in seconds.

    ``exposed_s`` of it went to waiting for a copy or, in a kernel, to sharing the machine.
    """

    start_s: float
    end_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class Move:
    """One copy: asked for, started and landed, in seconds."""

    channel: Channel
    value: str
    nbytes: int
    asked_s: float
    start_s: float
    end_s: float


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
    clock = _Clock(hardware)
    graphs = tuple(_run(each, kernel_seconds, clock) for each in schedules)
    return Simulation(graphs, dict(clock.busy_s))


def _run(schedule: Schedule, kernel_seconds: KernelSeconds, clock: _Clock) -> Simulated:
    start_s = clock.now
    first = len(clock.landed)
    nbytes = {value.name: value.nbytes for value in schedule.values}
    copies: dict[int, _Copy] = {}
    steps: list[StepTime] = []
    for step in schedule.steps:
        before = clock.now
        alone_s = 0.0
        match step:
            case Compute() | Update():
                alone_s = seconds_of(schedule, step, kernel_seconds)
                clock.run(UPDATE if isinstance(step, Update) else COMPUTE, alone_s)
            case Fetch(ticket, value) | Offload(ticket, value):
                copies[ticket] = clock.ask(channel_of(step), value, nbytes[value])
            case Wait(ticket):
                clock.wait(copies[ticket])
            case Release(_, after):
                if after is not None:
                    clock.wait(copies[after])
        steps.append(StepTime(before, clock.now, max(0.0, clock.now - before - alone_s)))
    return Simulated(schedule.name, start_s, clock.now, tuple(steps), tuple(clock.landed[first:]))


def seconds_of(schedule: Schedule, kernel: Kernel, kernel_seconds: KernelSeconds) -> float:
    """Return how long ``kernel`` takes alone; ``ValueError`` if that is not known."""
    known = kernel_seconds.get(schedule.name, {})
    name = kernel_name(kernel)
    if name not in known:
        raise ValueError(f"{schedule.name}: no time is known for the kernel {name!r}")
    return known[name]


@dataclass(slots=True)
class _Copy:
    channel: Channel
    value: str
    nbytes: int
    asked_s: float
    left_s: float
    start_s: float = 0.0
    landed: bool = False


class _Clock:
    """Time, what runs at the moment, and what waits for its turn."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._uses: dict[str, Shares] = {str(c): link.uses for c, link in hardware.links.items()}
        self._uses |= {COMPUTE: hardware.compute_uses, UPDATE: hardware.update_uses}
        self._queues: dict[Channel, deque[_Copy]] = {}
        self._speeds: dict[tuple[str, ...], Mapping[str, float]] = {}
        self.now = 0.0
        self.landed: list[Move] = []
        self.busy_s: dict[Channel, float] = {}

    def ask(self, channel: Channel, value: str, nbytes: int) -> _Copy:
        if channel not in self._hardware.links:
            have = ", ".join(self._hardware.links) or "none"
            raise ValueError(f"{self._hardware.name}: has no link {channel}; it has {have}")
        copy = _Copy(
            channel, value, nbytes, self.now, self._hardware.links[channel].seconds(nbytes)
        )
        queue = self._queues.setdefault(channel, deque())
        queue.append(copy)
        if len(queue) == 1:
            copy.start_s = self.now
        return copy

    def run(self, activity: str, left_s: float) -> None:
        """Let ``activity`` run to its end, and the copies beside it."""
        while left_s > _DONE:
            rates = self._rates(activity)
            passing_s = self._until_landing(rates)
            passing_s = min(passing_s, left_s / rates[activity])
            left_s -= passing_s * rates[activity]
            self._pass(passing_s, rates)

    def wait(self, copy: _Copy) -> None:
        while not copy.landed:
            rates = self._rates(None)
            self._pass(self._until_landing(rates), rates)

    def _rates(self, activity: str | None) -> Mapping[str, float]:
        running = tuple(str(channel) for channel, queue in self._queues.items() if queue)
        if activity is not None:
            running = (*running, activity)
        if running not in self._speeds:
            self._speeds[running] = speeds(running, self._uses)
        return self._speeds[running]

    def _until_landing(self, rates: Mapping[str, float]) -> float:
        heads = [(channel, queue[0]) for channel, queue in self._queues.items() if queue]
        return min((head.left_s / rates[channel] for channel, head in heads), default=float("inf"))

    def _pass(self, passing_s: float, rates: Mapping[str, float]) -> None:
        self.now += passing_s
        for channel, queue in self._queues.items():
            if not queue:
                continue
            self.busy_s[channel] = self.busy_s.get(channel, 0.0) + passing_s
            head = queue[0]
            head.left_s -= passing_s * rates[channel]
            if head.left_s <= _DONE:
                self._land(channel, queue)

    def _land(self, channel: Channel, queue: deque[_Copy]) -> None:
        done = queue.popleft()
        done.landed = True
        self.landed.append(
            Move(channel, done.value, done.nbytes, done.asked_s, done.start_s, self.now)
        )
        if queue:
            queue[0].start_s = self.now
