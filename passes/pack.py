"""Pack: give each fetched copy its place in the arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import ClassVar, NamedTuple

from zcompile.ir import Fetch, Release, Schedule, Step, Target, page_aligned
from zcompile.passes.base import OFFLOADED, PACKED, STREAMED
from zcompile.passes.free_space import FreeSpace

MAX_PAIRS = 250_000
"""With more pairs of copies held at once than this, copies choose in the order of time."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Assign offsets, so that copies held at the same time do not overlap.

    Each copy goes to the lowest place that is free for as long as it is held.  Which copy
    chooses first decides how well they fit; a few orders are tried and the smallest arena
    wins.  It can be larger than the most that is held at once, and `run_within_budget` then
    falls back to a leaner plan.  Where no copy is held past its kernel it never is.

    To know what is free for as long as a copy is held takes a look at all that are held with
    it.  Where those are too many, each takes the smallest piece that is free when it is fetched.

    Needs:  every copy fetched and released once.
    Keeps:  the steps and their order, offsets aside.
    Ends:   no two copies overlap, and the arena is just large enough.
    """

    name: ClassVar[str] = "pack"
    needs: ClassVar[frozenset[str]] = frozenset({STREAMED, OFFLOADED})
    gives: ClassVar[frozenset[str]] = frozenset({PACKED})

    def __call__(self, schedule: Schedule, target: Target) -> Schedule:  # noqa: ARG002 (Pass)
        held = _held(schedule)
        best: _Fit | None = None
        for fit in _fits(held):
            best = fit if best is None or fit.nbytes < best.nbytes else best
            if best.nbytes == held.most_bytes:
                break
        assert best is not None, "there is always something to try"
        offsets = iter(best.offsets)
        steps: list[Step] = [
            Fetch(step.ticket, step.value, step.src, next(offsets))
            if isinstance(step, Fetch)
            else step
            for step in schedule.steps
        ]
        return replace(schedule, steps=tuple(steps), arena_bytes=best.nbytes)


class _Slot(NamedTuple):
    """One copy: its size, and how long it is held."""

    nbytes: int
    first: int
    length: int


@dataclass(frozen=True, slots=True)
class _Held:
    """All copies in the order of the schedule, and the most bytes that are held at once."""

    slots: list[_Slot]
    most_bytes: int
    num_pairs: int


@dataclass(frozen=True, slots=True)
class _Fit:
    offsets: list[int]
    nbytes: int


_ORDERS: tuple[Callable[[_Slot], tuple[int, int]], ...] = (
    lambda slot: (-slot.nbytes, slot.first),
    lambda slot: (-slot.nbytes, -slot.length),
    lambda slot: (-slot.nbytes * slot.length, slot.first),
)
"""The largest first, then the earliest or the longest; and the most bytes for longest."""


def _held(schedule: Schedule) -> _Held:
    nbytes = {value.name: page_aligned(value.nbytes) for value in schedule.values}
    ends: list[int] = []
    starts: list[tuple[str, int]] = []
    held: dict[str, int] = {}
    bytes_now = most_bytes = num_pairs = 0
    for at, step in enumerate(schedule.steps):
        if isinstance(step, Fetch):
            num_pairs += len(held)
            held[step.value] = len(starts)
            starts.append((step.value, at))
            ends.append(len(schedule.steps))
            bytes_now += nbytes[step.value]
            most_bytes = max(most_bytes, bytes_now)
        elif isinstance(step, Release) and step.value in held:
            ends[held.pop(step.value)] = at
            bytes_now -= nbytes[step.value]
    slots = [
        _Slot(nbytes[value], first, end - first)
        for (value, first), end in zip(starts, ends, strict=True)
    ]
    return _Held(slots, most_bytes, num_pairs)


def _fits(held: _Held) -> Iterator[_Fit]:
    if held.num_pairs > MAX_PAIRS:
        yield _in_time(held.slots)
        return
    beside = _beside(held.slots)
    for order in _ORDERS:
        yield _first_fit(held.slots, beside, order)


def _beside(slots: Sequence[_Slot]) -> list[list[int]]:
    """Return for each slot those that are held with it."""
    found: list[list[int]] = []
    held: list[tuple[int, int]] = []
    for number, slot in enumerate(slots):
        held = [(end, other) for end, other in held if end > slot.first]
        found.append([other for _, other in held])
        for _, other in held:
            found[other].append(number)
        held.append((slot.first + slot.length, number))
    return found


def _first_fit(
    slots: Sequence[_Slot],
    beside: Sequence[Sequence[int]],
    order: Callable[[_Slot], tuple[int, int]],
) -> _Fit:
    offsets = [-1] * len(slots)
    for at in sorted(range(len(slots)), key=lambda each: order(slots[each])):
        taken = sorted(
            (offsets[other], offsets[other] + slots[other].nbytes)
            for other in beside[at]
            if offsets[other] >= 0
        )
        offset = 0
        for low, high in taken:
            if offset + slots[at].nbytes <= low:
                break
            offset = max(offset, high)
        offsets[at] = offset
    ends = (offset + slot.nbytes for offset, slot in zip(offsets, slots, strict=True))
    return _Fit(offsets, max(ends, default=0))


def _in_time(slots: Sequence[_Slot]) -> _Fit:
    """Place each copy when it is fetched, where copies that were released have lain."""
    space = FreeSpace()
    held: list[tuple[int, int, int]] = []
    offsets: list[int] = []
    for slot in slots:
        while held and held[0][0] < slot.first:
            _, offset, nbytes = heappop(held)
            space.give(offset, nbytes)
        offset = space.take(slot.nbytes)
        heappush(held, (slot.first + slot.length, offset, slot.nbytes))
        offsets.append(offset)
    return _Fit(offsets, space.nbytes)
