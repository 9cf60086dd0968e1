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
from typing import NamedTuple

from zcompile.ir import (
    Channel,
    Fetch,
    Hardware,
    Kernel,
    KernelSeconds,
    Link,
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

_NEVER = float("inf")


class StepTime(NamedTuple):
    """When the executing thread took a step and was done with it, in seconds.

    ``exposed_s`` of it went to waiting for a copy or, in a kernel, to sharing the machine.
    """

    start_s: float
    end_s: float
    exposed_s: float


class Move(NamedTuple):
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
    return Simulation(graphs, clock.busy_s)


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
            case Fetch() | Offload():
                copies[step.ticket] = clock.ask(channel_of(step), step.value, nbytes[step.value])
            case Wait():
                clock.wait(copies[step.ticket])
            case Release():
                if step.after is not None:
                    clock.wait(copies[step.after])
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


@dataclass(slots=True)
class _Copy:
    value: str
    nbytes: int
    alone_s: float
    asked_s: float
    start_s: float = 0.0
    landed: bool = False


@dataclass(slots=True)
class _Queue:
    """The copies of one channel; the first of them is under way at ``speed``, to land at ``end_s``.

    ``busy_since_s`` is when it last had nothing to do, ``bit`` a number for the channel.
    """

    bit: int
    channel: Channel
    name: str
    link: Link
    copies: deque[_Copy]
    speed: float = 1.0
    end_s: float = _NEVER
    busy_since_s: float = 0.0


class _Clock:
    """Time, what runs at the moment, and what waits for its turn.

    It goes from landing to landing.  When a copy lands changes only where speeds do: when a
    channel gets something to do or has no more, or a kernel that shares resources comes or goes.
    """

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._uses: dict[str, Shares] = {str(c): link.uses for c, link in hardware.links.items()}
        self._uses |= {COMPUTE: hardware.compute_uses, UPDATE: hardware.update_uses}
        self._queues: dict[Channel, _Queue] = {}
        self._running = 0
        """The bits of the channels that have something to move."""
        self._activity: str | None = None
        self._known: dict[tuple[int, str | None], Mapping[str, float]] = {}
        self._next_s = _NEVER
        self.now = 0.0
        self.landed: list[Move] = []
        self._busy_s: dict[Channel, float] = {}

    @property
    def busy_s(self) -> dict[Channel, float]:
        """How long each channel had something to move so far."""
        return {
            each.channel: self._busy_s.get(each.channel, 0.0)
            + (self.now - each.busy_since_s if each.copies else 0.0)
            for each in self._queues.values()
        }

    def ask(self, channel: Channel, value: str, nbytes: int) -> _Copy:
        queue = self._queues.get(channel) or self._open(channel)
        copy = _Copy(value, nbytes, queue.link.seconds(nbytes), self.now)
        queue.copies.append(copy)
        if len(queue.copies) == 1:
            queue.busy_since_s = self.now
            queue.speed = 1.0
            self._running |= queue.bit
            self._start(queue)
            self._settle()
        return copy

    def run(self, activity: str, left_s: float) -> None:
        """Let ``activity`` run to its end, and the copies beside it."""
        if left_s <= _DONE:
            return
        shares = bool(self._uses[activity])
        speed = self._begin(activity) if shares else 1.0
        end_s = self.now + left_s / speed
        while self._next_s <= end_s + _DONE:
            landing_s = min(self._next_s, end_s)
            left_s -= (landing_s - self.now) * speed
            self.now = landing_s
            self._land()
            if shares and (changed := self._speed_of(activity)) != speed:
                speed = changed
                end_s = self.now + left_s / speed
        self.now = end_s
        if shares:
            self._activity = None
            self._settle()

    def wait(self, copy: _Copy) -> None:
        while not copy.landed:
            self.now = max(self.now, self._next_s)
            self._land()

    def _open(self, channel: Channel) -> _Queue:
        if channel not in self._hardware.links:
            have = ", ".join(self._hardware.links) or "none"
            raise ValueError(f"{self._hardware.name}: has no link {channel}; it has {have}")
        bit = 1 << len(self._queues)
        queue = _Queue(bit, channel, str(channel), self._hardware.links[channel], deque())
        self._queues[channel] = queue
        return queue

    def _begin(self, activity: str) -> float:
        self._activity = activity
        self._settle()
        return self._speed_of(activity)

    def _speed_of(self, activity: str) -> float:
        return self._rates()[activity]

    def _rates(self) -> Mapping[str, float]:
        rates = self._known.get((self._running, self._activity))
        if rates is None:
            names = [each.name for each in self._queues.values() if each.copies]
            if self._activity is not None:
                names.append(self._activity)
            rates = self._known[self._running, self._activity] = speeds(names, self._uses)
        return rates

    def _settle(self) -> None:
        """Let the copies under way go on at the speeds of what runs now."""
        rates = self._rates()
        for queue in self._queues.values():
            if queue.copies and (speed := rates[queue.name]) != queue.speed:
                left_s = (queue.end_s - self.now) * queue.speed
                queue.end_s = self.now + left_s / speed
                queue.speed = speed
        self._next_s = min((each.end_s for each in self._queues.values()), default=_NEVER)

    def _start(self, queue: _Queue) -> None:
        head = queue.copies[0]
        head.start_s = self.now
        queue.end_s = self.now + head.alone_s / queue.speed

    def _land(self) -> None:
        """Land what is due."""
        idle = False
        for queue in self._queues.values():
            if queue.end_s > self.now + _DONE:
                continue
            done = queue.copies.popleft()
            done.landed = True
            self.landed.append(
                Move(queue.channel, done.value, done.nbytes, done.asked_s, done.start_s, self.now)
            )
            if queue.copies:
                self._start(queue)
                continue
            idle = True
            self._running &= ~queue.bit
            queue.end_s = _NEVER
            busy_s = self.now - queue.busy_since_s
            self._busy_s[queue.channel] = self._busy_s.get(queue.channel, 0.0) + busy_s
        if idle:
            self._settle()
        else:
            self._next_s = min(each.end_s for each in self._queues.values())
