"""Pack: give each fetched copy its place in the arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from zcompile.ir import Fetch, Release, Schedule, Step, Target, page_aligned
from zcompile.passes.base import OFFLOADED, PACKED, STREAMED


@dataclass(frozen=True, slots=True)
class Pack:
    """Assign offsets, so that copies held at the same time do not overlap.

    Each copy goes to the lowest place that is free for as long as it is held.  Which copy
    chooses first decides how well they fit; a few orders are tried and the smallest arena
    wins.  It can be larger than the most that is held at once, and `run_within_budget` then
    falls back to a leaner plan.  Where no copy is held past its kernel it never is.

    Needs:  every copy fetched and released once.
    Keeps:  the steps and their order, offsets aside.
    Ends:   no two copies overlap, and the arena is just large enough.
    """

    name: ClassVar[str] = "pack"
    needs: ClassVar[frozenset[str]] = frozenset({STREAMED, OFFLOADED})
    gives: ClassVar[frozenset[str]] = frozenset({PACKED})

    def __call__(self, schedule: Schedule, target: Target) -> Schedule:  # noqa: ARG002 (Pass)
        slots = _slots(schedule)
        best = min((_first_fit(slots, order) for order in _ORDERS), key=lambda fit: fit.nbytes)
        offsets = iter(best.offsets)
        steps: list[Step] = [
            replace(step, offset=next(offsets)) if isinstance(step, Fetch) else step
            for step in schedule.steps
        ]
        return replace(schedule, steps=tuple(steps), arena_bytes=best.nbytes)


@dataclass(frozen=True, slots=True)
class _Slot:
    """One copy: its size, how long it is held, and the copies held with it."""

    nbytes: int
    first: int
    length: int
    beside: list[int]


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


def _slots(schedule: Schedule) -> list[_Slot]:
    """Return a slot for each fetch, in the order of the schedule."""
    nbytes = {value.name: page_aligned(value.nbytes) for value in schedule.values}
    ends: list[int] = []
    starts: list[tuple[str, int]] = []
    beside: list[list[int]] = []
    held: dict[str, int] = {}
    for at, step in enumerate(schedule.steps):
        match step:
            case Fetch(_, value):
                slot = len(starts)
                beside.append(list(held.values()))
                for other in held.values():
                    beside[other].append(slot)
                held[value] = slot
                starts.append((value, at))
                ends.append(at)
            case Release(value):
                if value in held:
                    ends[held.pop(value)] = at
            case _:
                pass
    return [
        _Slot(nbytes[value], first, end - first, others)
        for (value, first), end, others in zip(starts, ends, beside, strict=True)
    ]


def _first_fit(slots: Sequence[_Slot], order: Callable[[_Slot], tuple[int, int]]) -> _Fit:
    offsets = [-1] * len(slots)
    for at in sorted(range(len(slots)), key=lambda each: order(slots[each])):
        taken = sorted(
            (offsets[other], offsets[other] + slots[other].nbytes)
            for other in slots[at].beside
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
