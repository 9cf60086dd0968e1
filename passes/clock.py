"""The clock of the simulator: what is under way at a moment, and what ends next.

Each channel moves one copy at a time, first in, first out; the latency of a copy passes while
those ahead of it travel.  What runs at the same time shares resources (`zcompile.passes.sharing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from zcompile.ir import Channel, Hardware
from zcompile.ir.hardware import Shares
from zcompile.passes.sharing import speeds

COMPUTE, UPDATE = "compute", "update"

KERNELS_OF_ALL = "kernels"
"""What kernels of several threads share: however many run, together they are no faster than one."""

_DONE = 1e-12
"""Work below this many seconds is none: what is left of sums of floats."""

_NEVER = float("inf")


class Move(NamedTuple):
    """One copy: asked for, started and landed, in seconds."""

    channel: Channel
    value: str
    nbytes: int
    asked_s: float
    start_s: float
    end_s: float


@dataclass(slots=True)
class Work:
    """A copy that was asked for, or a kernel that runs beside those of other threads."""

    value: str
    nbytes: int
    alone_s: float
    asked_s: float
    latency_s: float = 0.0
    start_s: float = 0.0
    landed: bool = False


@dataclass(slots=True)
class _Queue:
    """The work of one channel; the first of it is under way at ``speed``, to be over at ``end_s``.

    ``busy_since_s`` is when it last had nothing to do, ``bit`` a number for the channel.  What
    runs kernels beside those of other threads is one, too: it has no ``channel``.
    """

    bit: int
    channel: Channel | None
    name: str
    copies: deque[Work]
    speed: float = 1.0
    end_s: float = _NEVER
    busy_since_s: float = 0.0


class Clock:
    """Time, what runs at the moment, and what waits for its turn.

    It goes from landing to landing.  When a copy lands changes only where speeds do: when a
    channel gets something to do or has no more, or a kernel that shares resources comes or goes.
    """

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self._uses: dict[str, Shares] = {str(c): link.uses for c, link in hardware.links.items()}
        self._uses |= {COMPUTE: hardware.compute_uses, UPDATE: hardware.update_uses}
        self._queues: dict[str, _Queue] = {}
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
            if each.channel is not None
        }

    def ask(self, channel: Channel, value: str, nbytes: int) -> Work:
        """Have ``value`` copied; ``ValueError`` if there is no such channel."""
        queue = self._queues.get(channel) or self._open(channel)
        link = self._hardware.links[channel]
        copy = Work(value, nbytes, link.travel_s(nbytes), self.now, link.latency_s)
        self._join(queue, copy)
        return copy

    def begin(self, activity: str, alone_s: float) -> Work:
        """Let a kernel run beside those of other threads; whoever waits for it goes on then.

        All kernels that run so at once are together no faster than one.
        """
        kernel = Work(activity, 0, alone_s, self.now)
        if alone_s <= _DONE:
            kernel.landed = True
            return kernel
        queue = self._queues.get(activity)
        if queue is None:
            queue = self._queue(None, activity)
            self._uses[activity] = (*self._uses[activity], (KERNELS_OF_ALL, 1.0))
        self._join(queue, kernel)
        return kernel

    def go_on(self) -> None:
        """Let time pass until something that is under way ends."""
        assert self._next_s < _NEVER, "all wait and nothing is under way"
        self.now = max(self.now, self._next_s)
        self._land()

    def run(self, activity: str, left_s: float) -> None:
        """Let ``activity`` run to its end, and the copies beside it."""
        if left_s <= _DONE:
            return
        shares = bool(self._uses[activity])
        speed = self._enter(activity) if shares else 1.0
        end_s: float = self.now + left_s / speed
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

    def wait(self, copy: Work) -> None:
        """Let time pass until ``copy`` has landed."""
        while not copy.landed:
            self.go_on()

    def _open(self, channel: Channel) -> _Queue:
        if channel not in self._hardware.links:
            have = ", ".join(self._hardware.links) or "none"
            raise ValueError(f"{self._hardware.name}: has no link {channel}; it has {have}")
        return self._queue(channel, str(channel))

    def _queue(self, channel: Channel | None, name: str) -> _Queue:
        queue = self._queues[name] = _Queue(1 << len(self._queues), channel, name, deque())
        return queue

    def _join(self, queue: _Queue, work: Work) -> None:
        queue.copies.append(work)
        if len(queue.copies) == 1:
            queue.busy_since_s = self.now
            queue.speed = 1.0
            self._running |= queue.bit
            self._start(queue)
            self._settle()

    def _enter(self, activity: str) -> float:
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
        latency_s = max(0.0, head.asked_s + head.latency_s - self.now)
        queue.end_s = self.now + (latency_s + head.alone_s) / queue.speed

    def _land(self) -> None:
        """Land what is due."""
        idle = False
        for queue in self._queues.values():
            if queue.end_s > self.now + _DONE:
                continue
            done = queue.copies.popleft()
            done.landed = True
            if queue.channel is not None:
                self.landed.append(
                    Move(
                        queue.channel, done.value, done.nbytes, done.asked_s, done.start_s, self.now
                    )
                )
            if queue.copies:
                self._start(queue)
                continue
            idle = True
            self._running &= ~queue.bit
            queue.end_s = _NEVER
            if queue.channel is not None:
                busy_s = self.now - queue.busy_since_s
                self._busy_s[queue.channel] = self._busy_s.get(queue.channel, 0.0) + busy_s
        if idle:
            self._settle()
        else:
            self._next_s = min(each.end_s for each in self._queues.values())
