"""How many bytes a schedule holds at each step, on the device and on the host.

Everything here assumes that the rules V1 and V2 hold; `zcompile.ir.verify` checks them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zcompile.ir.schedule import (
    KERNELS,
    Fetch,
    Kernel,
    Offload,
    Release,
    Schedule,
    Step,
    Tier,
    Value,
    page_aligned,
)
from zcompile.ir.target import Target
from zcompile.ir.uses import given, last_touch


@dataclass(frozen=True, slots=True)
class Footprint:
    """The device bytes that a schedule itself holds, one entry a step.

    ``ordinary`` is memory outside the arena, the running kernel's transients included;
    ``arena`` is the sum of the slots of the fetched copies.  An entry is the most that is
    held at any moment of its step.
    """

    ordinary: tuple[int, ...]
    arena: tuple[int, ...]


class _Device:
    """What lies on the device after some steps."""

    def __init__(self, schedule: Schedule) -> None:
        self._nbytes = {value.name: value.nbytes for value in schedule.values}
        self._slot_bytes = {name: page_aligned(each) for name, each in self._nbytes.items()}
        device = {value.name for value in schedule.values if value.home is Tier.DEVICE}
        kept = {value.name for value in schedule.values if value.held} | set(schedule.outputs)
        self._dying: dict[int, list[str]] = {}
        """By step, what dies with the kernel there."""
        for name, last in last_touch(schedule).items():
            if name in device and name not in kept:
                self._dying.setdefault(last, []).append(name)
        self._given = given(schedule)
        self._ordinary = device & self._given
        self._fetched: set[str] = set()
        self.ordinary = self._sum(self._ordinary)
        self.arena = 0

    def run(self, at: int, kernel: Kernel) -> int:
        """Run ``kernel`` at step ``at``; return the most ordinary bytes held meanwhile."""
        before = self.ordinary
        ordinary, nbytes = self._ordinary, self._nbytes
        for name in kernel.writes:
            if name not in self._given and name not in ordinary and name not in self._fetched:
                ordinary.add(name)
                self.ordinary += nbytes[name]
        for name in self._dying.get(at, ()):
            if name in ordinary:
                ordinary.remove(name)
                self.ordinary -= nbytes[name]
        return max(before + kernel.transient_bytes, self.ordinary)

    def take(self, at: int, step: Step) -> int:
        """Take ``step``, the one at ``at``; return the most ordinary bytes held meanwhile."""
        if isinstance(step, Fetch):
            self.fetch(step.value)
        elif isinstance(step, Release):
            self.release(step.value)
        elif isinstance(step, KERNELS):
            return self.run(at, step)
        return self.ordinary

    def fetch(self, value: str) -> None:
        self._fetched.add(value)
        self.arena += self._slot_bytes[value]

    def release(self, value: str) -> None:
        if value in self._fetched:
            self._fetched.remove(value)
            self.arena -= self._slot_bytes[value]
        else:
            self._ordinary.remove(value)
            self.ordinary -= self._nbytes[value]

    @property
    def present(self) -> set[str]:
        return self._ordinary | self._fetched

    def _sum(self, names: Iterable[str]) -> int:
        return sum(self._nbytes[name] for name in names)


def footprint(schedule: Schedule) -> Footprint:
    """Return what ``schedule`` holds on the device at each step."""
    device = _Device(schedule)
    ordinary: list[int] = []
    arena: list[int] = []
    for at, step in enumerate(schedule.steps):
        ordinary.append(device.take(at, step))
        arena.append(device.arena)
    return Footprint(tuple(ordinary), tuple(arena))


def held_at(schedule: Schedule, at: int) -> tuple[Value, ...]:
    """Return the values that the device holds at step ``at``, as its footprint counts them."""
    device = _Device(schedule)
    for before, step in enumerate(schedule.steps[:at]):
        device.take(before, step)
    held = set(device.present)
    device.take(at, schedule.steps[at])
    held |= device.present
    return tuple(value for value in schedule.values if value.name in held)


def arena_peak_bytes(schedule: Schedule) -> int:
    """Return the most bytes of the arena that are held at once: all of a static one."""
    return _static_bytes(schedule) or max(footprint(schedule).arena, default=0)


def device_profile(schedule: Schedule, target: Target) -> list[int]:
    """Return the bytes held on the device at each step, reserved ones included.

    A static arena whose size is known is there all the time.  Before it is known, or where
    the schedule vacates, each fetched copy counts from its ``Fetch`` to its ``Release``.
    """
    held = footprint(schedule)
    static = _static_bytes(schedule)
    return [
        target.reserved_bytes + ordinary + (static or arena)
        for ordinary, arena in zip(held.ordinary, held.arena, strict=True)
    ]


def held_after_moves(schedule: Schedule) -> tuple[int, ...]:
    """Return the device bytes that ``schedule`` itself holds after each step that is no kernel."""
    held = footprint(schedule)
    static = _static_bytes(schedule)
    return tuple(
        held.ordinary[at] + (static or held.arena[at])
        for at, step in enumerate(schedule.steps)
        if not isinstance(step, KERNELS)
    )


def host_profile(schedule: Schedule, target: Target) -> list[int]:
    """Return the bytes held on the host at each step, reserved ones included.

    Homes of given values are there from the start; the home of a value that a kernel makes
    is there from its first ``Offload``.  A home takes whole pages.
    """
    on_host = {
        value.name: page_aligned(value.nbytes)
        for value in schedule.values
        if value.home is Tier.HOST
    }
    present = given(schedule) & on_host.keys()
    held = target.host_reserved_bytes + sum(on_host[name] for name in present)
    arriving = on_host.keys() - present
    profile: list[int] = []
    for step in schedule.steps:
        if isinstance(step, Offload) and step.value in arriving:
            arriving.remove(step.value)
            held += on_host[step.value]
        profile.append(held)
    return profile


def peak_bytes(schedule: Schedule, target: Target) -> int:
    """Return the most bytes that are held on the device at any step."""
    nothing_runs = target.reserved_bytes + _static_bytes(schedule)
    return max(device_profile(schedule, target), default=nothing_runs)


def _static_bytes(schedule: Schedule) -> int:
    return 0 if schedule.vacates else schedule.arena_bytes
