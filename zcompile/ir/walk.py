"""Rules V1 to V3: where each value is while the steps are taken one by one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from zcompile.ir.rules import Rule, ScheduleError
from zcompile.ir.schedule import (
    PAGE_BYTES,
    Compute,
    Fetch,
    Kernel,
    Offload,
    Release,
    Schedule,
    Step,
    Tier,
    Update,
    Wait,
    page_aligned,
)
from zcompile.ir.uses import given

_NONE = frozenset[str]()


@dataclass(slots=True)
class _Copy:
    """The device copy of one value whose home is not the device."""

    fetched_by: int | None
    """The ticket of its fetch; ``None`` for a copy in ordinary memory, made by a kernel."""
    landed: bool
    newer: bool
    """It holds bytes that no other copy and no copy in flight has."""
    offloaded_by: int | None = None
    """The ticket of the offload that reads it."""


class _Arena:
    """The slots in use, by offset."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._slots: list[tuple[int, int, str]] = []
        self._of: dict[str, tuple[int, int, str]] = {}

    def hold(self, value: str, offset: int, nbytes: int) -> str | None:
        """Take the slot of ``value``; return what is wrong with it, if anything is."""
        slot = (offset, offset + page_aligned(nbytes), value)
        if offset % PAGE_BYTES:
            return f"puts %{value} at {offset}, which is no multiple of {PAGE_BYTES}"
        if slot[1] > self._nbytes:
            return f"puts %{value} at {offset} to {slot[1]}, past the arena of {self._nbytes} B"
        if slot[0] == slot[1]:
            return None
        at = bisect_left(self._slots, slot)
        for other in self._slots[max(0, at - 1) : at + 1]:
            if slot[0] < other[1] and other[0] < slot[1]:
                return f"puts %{value} at {offset}, where %{other[2]} still lies"
        self._slots.insert(at, slot)
        self._of[value] = slot
        return None

    def free(self, value: str) -> None:
        if slot := self._of.pop(value, None):
            del self._slots[bisect_left(self._slots, slot)]


class Walk:
    """Takes the steps one by one and raises at the first that breaks one of ``rules``.

    Where a rule is not asked for, the walk goes on as if the step were right, so that a
    half-made plan can be checked for what it already promises.
    """

    def __init__(self, schedule: Schedule, rules: Collection[Rule]) -> None:
        self._schedule = schedule
        self._rules = rules
        self._values = {value.name: value for value in schedule.values}
        self._away = {each.name for each in schedule.values if each.home is not Tier.DEVICE}
        self._given = given(schedule)
        self._at = 0
        self._made: set[str] = set()
        self._home_is_newest = set(self._given)
        self._copies: dict[str, _Copy] = {}
        self._tickets: set[int] = set()
        fetches = [step for step in schedule.steps if isinstance(step, Fetch)]
        self._placed = any(fetch.offset is not None for fetch in fetches)
        self._arena = _Arena(schedule.arena_bytes)

    def run(self) -> None:
        # By type: a plan has hundreds of thousands of steps, and is walked after every pass.
        take: dict[type[Step], Callable[[Any], None]] = {
            Compute: self._kernel,
            Update: self._kernel,
            Fetch: self._fetch,
            Wait: self._wait,
            Offload: self._offload,
            Release: self._release,
        }
        for at, step in enumerate(self._schedule.steps):
            self._at = at
            take[type(step)](step)
        self._end()

    def _fail(self, rule: Rule, why: str) -> None:
        if rule in self._rules:
            raise ScheduleError(self._schedule, rule, why, self._at)

    def _kernel(self, step: Kernel) -> None:
        # An update changes in place, so what it writes must be there already.
        made = self._new(step) if step.writes and isinstance(step, Compute) else _NONE
        for name in step.reads:
            self._touch(name)
        for name in step.writes:
            if name not in made:
                self._touch(name)
        for name in step.writes:
            self._write(name, new=name in made)

    def _new(self, step: Compute) -> set[str]:
        """Return what ``step`` makes: one by one, since there may be many given values."""
        return {
            name
            for name in step.writes
            if name not in self._given and name not in self._copies and name not in step.reads
        }

    def _touch(self, name: str) -> None:
        if name not in self._away:
            if name not in self._given and name not in self._made:
                self._fail(Rule.RESIDENT, f"touches %{name} before it is made")
            return
        copy = self._copies.get(name)
        if copy is None:
            self._fail(Rule.RESIDENT, f"touches %{name}, which is not on the device")
        elif not copy.landed:
            self._fail(Rule.RESIDENT, f"touches %{name} before t{copy.fetched_by} is waited for")

    def _write(self, name: str, *, new: bool) -> None:
        self._made.add(name)
        if name not in self._away:
            return
        if new:
            self._copies[name] = _Copy(fetched_by=None, landed=True, newer=True)
        copy = self._copies.get(name)
        if copy is None:
            return
        if copy.offloaded_by is not None:
            self._fail(Rule.RETURNED, f"writes %{name} while t{copy.offloaded_by} copies it out")
        copy.newer = True
        self._home_is_newest.discard(name)

    def _take_ticket(self, ticket: int) -> None:
        if ticket < 0 or ticket in self._tickets:
            self._fail(Rule.RETURNED, f"t{ticket} is no new ticket")
        self._tickets.add(ticket)

    def _fetch(self, step: Fetch) -> None:
        name = step.value
        self._take_ticket(step.ticket)
        if name in self._copies:
            self._fail(Rule.RETURNED, f"fetches %{name}, which the device already holds")
        home = self._values[name].home
        if step.src is not home or home is Tier.DEVICE:
            self._fail(Rule.RETURNED, f"fetches %{name} from {step.src}; its home is {home}")
        if name not in self._home_is_newest:
            self._fail(Rule.RETURNED, f"fetches %{name}, of which {home} has no valid copy")
        self._copies[name] = _Copy(fetched_by=step.ticket, landed=False, newer=False)
        if not self._placed:
            return
        if step.offset is None:
            self._fail(Rule.SPACE, f"gives %{name} no place in the arena; others have one")
        elif why := self._arena.hold(name, step.offset, self._values[name].nbytes):
            self._fail(Rule.SPACE, why)

    def _wait(self, step: Wait) -> None:
        copy = self._copies.get(step.value)
        if copy is None or copy.landed or copy.fetched_by != step.ticket:
            self._fail(Rule.RETURNED, f"waits for t{step.ticket}, which brings no %{step.value}")
        if copy is not None:
            copy.landed = True

    def _offload(self, step: Offload) -> None:
        name = step.value
        self._take_ticket(step.ticket)
        home = self._values[name].home
        copy = self._copies.get(name)
        if step.dst is not home or home is Tier.DEVICE:
            self._fail(Rule.RETURNED, f"offloads %{name} to {step.dst}; its home is {home}")
        if copy is None or not copy.landed:
            self._fail(Rule.RETURNED, f"offloads %{name}, which is not on the device")
        elif not copy.newer:
            self._fail(Rule.RETURNED, f"offloads %{name}, which is no newer than its home")
        if copy is not None:
            copy.newer = False
            copy.offloaded_by = step.ticket

    def _release(self, step: Release) -> None:
        name = step.value
        copy = self._copies.pop(name, None)
        if copy is None:
            self._fail(Rule.RETURNED, f"releases %{name}, of which no copy is held")
            return
        if not copy.landed:
            self._fail(Rule.RETURNED, f"releases %{name} before t{copy.fetched_by} is waited for")
        if copy.newer:
            self._fail(Rule.RETURNED, f"drops the only valid copy of %{name}")
        elif step.after != copy.offloaded_by:
            due = "nothing" if copy.offloaded_by is None else f"t{copy.offloaded_by}"
            self._fail(Rule.RETURNED, f"releases %{name} after the wrong offload; {due} is due")
        self._arena.free(name)
        self._home_is_newest.add(name)

    def _end(self) -> None:
        for name in self._copies:
            self._fail(Rule.RETURNED, f"the end is reached with %{name} still on the device")
        for name in self._schedule.outputs:
            if name not in self._given and name not in self._made:
                self._fail(Rule.RESIDENT, f"the end is reached and output %{name} is not made")
