"""Runs a schedule on names, with copies as early or as late as they may be.

Every content is a version: that of a home before the first step, or what a kernel made
from the versions it read.  A copy moves its bytes when it starts or only when somebody
waits for it; freed memory and memory about to be filled hold garbage.  Two schedules that
end the same way under all four timings cannot be told apart by results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import assert_never

from zcompile.ir import (
    Compute,
    Fetch,
    Kernel,
    Offload,
    Release,
    Schedule,
    Tier,
    Update,
    Wait,
    footprint,
    kernel_name,
    page_aligned,
    strip,
)

GARBAGE = -1


@dataclass(frozen=True, slots=True)
class Timing:
    fetches_early: bool
    offloads_early: bool


@dataclass(slots=True, eq=False)
class _Slot:
    first: int
    end: int
    version: int


@dataclass(slots=True)
class _World:
    sizes: dict[str, int]
    timing: Timing
    homes: dict[str, int]
    device: dict[str, _Slot]
    arena: list[_Slot] = field(default_factory=list[_Slot])
    flying: dict[int, tuple[str, _Slot]] = field(default_factory=dict[int, tuple[str, _Slot]])
    leaving: dict[int, tuple[str, _Slot]] = field(default_factory=dict[int, tuple[str, _Slot]])
    seen: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])

    def fill(self, slot: _Slot, version: int) -> None:
        """Write into ``slot``, and so over whatever overlaps it in the arena."""
        for other in self.arena:
            if other is not slot and max(slot.first, other.first) < min(slot.end, other.end):
                other.version = GARBAGE
        slot.version = version

    def run(self, kernel: Kernel) -> None:
        found: list[int] = []
        for name in kernel.reads:
            slot = self.device.get(name)
            found.append(GARBAGE if slot is None else slot.version)
        self.seen.append((kernel_name(kernel), *found))
        for name in kernel.writes:
            version = hash((kernel_name(kernel), name, *found))
            slot = self.device.setdefault(name, _Slot(0, 0, GARBAGE))
            self.fill(slot, version)

    def fetch(self, step: Fetch) -> None:
        assert step.offset is not None
        slot = _Slot(step.offset, step.offset + page_aligned(self.sizes[step.value]), GARBAGE)
        self.arena.append(slot)
        early = self.timing.fetches_early
        self.fill(slot, self.homes.get(step.value, GARBAGE) if early else GARBAGE)
        self.flying[step.ticket] = (step.value, slot)

    def wait(self, step: Wait) -> None:
        value, slot = self.flying.pop(step.ticket)
        if not self.timing.fetches_early:
            self.fill(slot, self.homes.get(value, GARBAGE))
        self.device[step.value] = slot

    def offload(self, step: Offload) -> None:
        slot = self.device[step.value]
        self.homes[step.value] = slot.version if self.timing.offloads_early else GARBAGE
        self.leaving[step.ticket] = (step.value, slot)

    def land(self, ticket: int) -> None:
        value, slot = self.leaving.pop(ticket)
        if not self.timing.offloads_early:
            self.homes[value] = slot.version

    def release(self, step: Release) -> None:
        if step.after is not None:
            self.land(step.after)
        slot = self.device.pop(step.value)
        slot.version = GARBAGE
        if slot in self.arena:
            self.arena.remove(slot)


def _world(schedule: Schedule, timing: Timing) -> _World:
    given = {value.name: hash((value.name, "before")) for value in schedule.values}
    device = {
        value.name: _Slot(0, 0, given[value.name])
        for value in schedule.values
        if value.home is Tier.DEVICE
    }
    homes = {name: version for name, version in given.items() if name not in device}
    return _World({v.name: v.nbytes for v in schedule.values}, timing, homes, device)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What can be told apart when a schedule has run.

    ``seen`` are the versions that each kernel read, ``ends`` the version of each value where
    it rests, ``left`` what was not cleared away: copies on the device, fetches in flight.
    """

    seen: tuple[tuple[object, ...], ...]
    ends: Mapping[str, int]
    left: tuple[object, ...] = ()


CRASH = Outcome((), {}, ("the executor would crash",))


def outcome(schedule: Schedule, timing: Timing) -> Outcome:
    """Run ``schedule``, whatever is wrong with it."""
    world = _world(schedule, timing)
    try:
        for step in schedule.steps:
            match step:
                case Compute() | Update():
                    world.run(step)
                case Fetch():
                    world.fetch(step)
                case Wait():
                    world.wait(step)
                case Offload():
                    world.offload(step)
                case Release():
                    world.release(step)
                case _:
                    assert_never(step)
    except KeyError:
        return CRASH
    for ticket in tuple(world.leaving):  # copies that nobody waited for land some day
        world.land(ticket)
    left = sorted(name for name in world.device if name in world.homes)
    on_device = {name: slot.version for name, slot in world.device.items() if name not in left}
    return Outcome(tuple(world.seen), {**on_device, **world.homes}, (*left, *sorted(world.flying)))


def outcomes(schedule: Schedule) -> list[Outcome]:
    """Return the outcome under each of the four timings."""
    return [outcome(schedule, Timing(*early)) for early in product((True, False), repeat=2)]


def captured_outcome(schedule: Schedule) -> Outcome:
    """Return the outcome of the kernels of ``schedule`` alone, with nothing to be moved."""
    on_device = tuple(replace(value, home=Tier.DEVICE) for value in schedule.values)
    return outcome(replace(strip(schedule), values=on_device), Timing(True, True))


def bytes_at_kernels(schedule: Schedule) -> list[int]:
    """Return the device bytes held at each kernel."""
    held = footprint(schedule)
    return [
        held.ordinary[at] + held.arena[at]
        for at, step in enumerate(schedule.steps)
        if isinstance(step, Compute | Update)
    ]
