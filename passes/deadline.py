"""Deadline: start each fetch as late as its channel still hides it, by the times that are known."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from zcompile.ir import (
    KERNELS,
    Channel,
    Fetch,
    Footprint,
    Hardware,
    Offload,
    Release,
    Schedule,
    Target,
    Wait,
    channel_of,
    footprint,
    operands,
)
from zcompile.passes.base import OFFLOADED, STREAMED, check_percent
from zcompile.passes.room import Room
from zcompile.passes.simulate import Simulated, seconds_of, simulate
from zcompile.passes.timeline import Move, Timeline

MARGIN = 0.01
"""The share of the graph's time by which a fetch starts sooner than it must."""

NEGLIGIBLE = 0.002
"""Where kernels, or one channel, take all but this share of the time, once is enough."""

_COPIES = (Fetch, Offload)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time every move by the kernels and channels of the target.

    Write-backs come first: a release that waits for one is put off until it has landed, as
    far as there is room, so that it holds nobody up.  Then each fetch starts as late as its
    channel, first in, first out, still hides it, and earlier than that never; where memory is
    too short for that, as early as it allows.  The plan is simulated, and made again with the
    times that came out; the faster of the two stays.

    Needs:  a plan that keeps its copies as `Stream` and `Offload` do; the target's hardware and
            the seconds of each kernel.
    Keeps:  the kernels; the set of steps; the order of copies of one channel.
    Ends:   the budget kept wherever it was.
    """

    name: ClassVar[str] = "deadline"
    needs: ClassVar[frozenset[str]] = frozenset({STREAMED, OFFLOADED})
    gives: ClassVar[frozenset[str]] = frozenset()

    spare_percent: int = 100

    def __post_init__(self) -> None:
        check_percent(self.name, self.spare_percent)

    def __call__(self, schedule: Schedule, target: Target) -> Schedule:
        """Return the timed plan; ``ValueError`` if the target does not say how long things take."""
        if target.hardware is None:
            raise ValueError(f"{self.name}: the target has no hardware to keep time by")
        work = _Work.of(schedule, target)
        clock = _alone(work)
        least_s = max(clock.gap_s[-1], *map(sum, clock.copy_s.values()), 0.0)
        found: list[tuple[float, int, Schedule]] = []
        for attempt in range(2):
            timed = _timed(work, clock, self.spare_percent)
            (ran,) = simulate([timed], target.kernel_seconds, target.hardware).graphs
            found.append((ran.end_s, attempt, timed))
            if ran.end_s <= least_s * (1 + NEGLIGIBLE):
                break
            clock = _observed(timed, ran)
        return min(found)[2]


@dataclass(frozen=True, slots=True)
class _Clock:
    """When each gap begins, and how long each copy of a channel takes, in its order."""

    gap_s: Sequence[float]
    copy_s: Mapping[Channel, Sequence[float]]


@dataclass(frozen=True, slots=True)
class _Work:
    """The plan to be timed, and what of it does not depend on times."""

    schedule: Schedule
    target: Target
    timeline: Timeline
    held: Footprint
    nbytes: Mapping[str, int]
    waits: Mapping[int, int]
    """By ticket, the gap in which a fetch is waited for."""
    touched: Mapping[str, Sequence[int]]
    """By value, in order, the gaps in which a fetch of it or a kernel on it comes next."""

    @classmethod
    def of(cls, schedule: Schedule, target: Target) -> _Work:
        timeline = Timeline.of(schedule)
        return cls(
            schedule,
            target,
            timeline,
            footprint(schedule),
            {value.name: value.nbytes for value in schedule.values},
            {move.ticket: gap for gap, move in timeline.moves() if isinstance(move, Wait)},
            _touches(timeline),
        )


def _alone(work: _Work) -> _Clock:
    """Return the times of a run in which nothing waits and nothing is shared."""
    hardware, kernel_seconds = work.target.hardware, work.target.kernel_seconds
    assert hardware is not None
    seconds = (seconds_of(work.schedule, each, kernel_seconds) for each in work.timeline.kernels)
    copies: dict[Channel, list[float]] = {}
    for _, move in work.timeline.moves():
        if isinstance(move, _COPIES):
            channel = channel_of(move)
            took = _seconds(hardware, channel, work.nbytes[move.value])
            copies.setdefault(channel, []).append(took)
    return _Clock([0.0, *accumulate(seconds)], copies)


def _observed(schedule: Schedule, ran: Simulated) -> _Clock:
    """Return the times of a run: a gap begins when the kernel before it is done."""
    gap_s = [0.0]
    gap_s += [
        time.end_s
        for step, time in zip(schedule.steps, ran.steps, strict=True)
        if isinstance(step, KERNELS)
    ]
    copies: dict[Channel, list[float]] = {}
    for move in ran.moves:
        copies.setdefault(move.channel, []).append(move.end_s - move.start_s)
    return _Clock(gap_s, copies)


def _seconds(hardware: Hardware, channel: Channel, nbytes: int) -> float:
    if channel not in hardware.links:
        raise ValueError(f"{hardware.name}: has no link {channel}, which the plan uses")
    return hardware.links[channel].travel_s(nbytes)


def _timed(work: _Work, clock: _Clock, spare_percent: int) -> Schedule:
    room = Room(work.schedule, work.target, spare_percent, work.held)
    releases = _releases(work, room, clock)
    fetches = _fetches(work, releases, room, clock)
    gaps: list[list[Move]] = [
        [*freed, *(move for move in moves if not isinstance(move, (Release, Fetch))), *fetched]
        for moves, freed, fetched in zip(work.timeline.gaps, releases, fetches, strict=True)
    ]
    return work.schedule.with_steps(Timeline(work.timeline.kernels, gaps).steps())


def _releases(work: _Work, room: Room, clock: _Clock) -> list[list[Release]]:
    """Return the releases by gap: those that wait for a copy out where it has landed."""
    timeline, nbytes = work.timeline, work.nbytes
    landed = _landings(timeline, clock)
    found: list[list[Release]] = [[] for _ in timeline.gaps]
    fetched: set[str] = set()
    for gap, move in timeline.moves():
        if isinstance(move, Fetch):
            fetched.add(move.value)
        if not isinstance(move, Release):
            continue
        at = gap
        if move.after is not None:
            wanted = bisect_left(clock.gap_s, landed[move.after], lo=gap)
            wanted = min(wanted, len(timeline.kernels), _next(work.touched[move.value], gap))
            if move.value in fetched:
                at = room.latest_arena(gap, wanted, nbytes[move.value])
                room.take_arena(gap, at, nbytes[move.value])
            else:
                at = room.latest_ordinary(gap, wanted, nbytes[move.value])
                room.take_ordinary(gap, at, nbytes[move.value])
        found[at].append(move)
        fetched.discard(move.value)
    return found


def _landings(timeline: Timeline, clock: _Clock) -> dict[int, float]:
    """Return by ticket when each copy out lands if it starts where it is asked for."""
    free_s: dict[Channel, float] = {}
    passed: dict[Channel, int] = {}
    found: dict[int, float] = {}
    for gap, move in timeline.moves():
        if isinstance(move, Offload):
            channel = channel_of(move)
            number = passed.get(channel, 0)
            start_s = max(clock.gap_s[gap], free_s.get(channel, 0.0))
            found[move.ticket] = free_s[channel] = start_s + clock.copy_s[channel][number]
            passed[channel] = number + 1
    return found


def _touches(timeline: Timeline) -> dict[str, list[int]]:
    """Return by value, in order, the gaps in which a fetch of it or a kernel on it comes next."""
    found: dict[str, list[int]] = {}
    for gap, moves in enumerate(timeline.gaps):
        touched = [move.value for move in moves if isinstance(move, Fetch)]
        if gap < len(timeline.kernels):
            touched += operands(timeline.kernels[gap])
        for name in touched:
            found.setdefault(name, []).append(gap)
    return found


def _next(gaps: Sequence[int], gap: int) -> int:
    """Return the first of ``gaps`` from ``gap`` on; a number beyond all gaps if there is none."""
    at = bisect_left(gaps, gap)
    return gaps[at] if at < len(gaps) else 1 << 62


def _fetches(
    work: _Work, releases: Iterable[Sequence[Release]], room: Room, clock: _Clock
) -> list[list[Fetch]]:
    """Return the fetches by gap, each as late as it may be, or as early as there is room."""
    timeline, nbytes = work.timeline, work.nbytes
    latest = _latest_starts(work, clock)
    margin_s = MARGIN * clock.gap_s[-1]
    freed: dict[str, list[int]] = {}
    for gap, own_releases in enumerate(releases):
        for release in own_releases:
            freed.setdefault(release.value, []).append(gap)
    last: dict[Channel, int] = {}
    found: list[list[Fetch]] = [[] for _ in timeline.gaps]
    for gap, move in timeline.moves():
        if not isinstance(move, Fetch):
            continue
        channel = channel_of(move)
        wanted = bisect_right(clock.gap_s, latest[move.ticket] - margin_s) - 1
        before = freed.get(move.value, ())
        own = bisect_right(before, gap)
        first = max(wanted, last.get(channel, 0), before[own - 1] if own else 0)
        at = room.earliest_arena(min(first, gap), gap, nbytes[move.value])
        room.take_arena(at, gap, nbytes[move.value])
        found[at].append(move)
        last[channel] = at
    return found


def _latest_starts(work: _Work, clock: _Clock) -> dict[int, float]:
    """Return by ticket when each fetch must start for it, and all behind it, to come in time."""
    waits, hardware = work.waits, work.target.hardware
    assert hardware is not None, "it has been asked for"
    queues: dict[Channel, list[int]] = {}
    for _, move in work.timeline.moves():
        if isinstance(move, Fetch):
            queues.setdefault(channel_of(move), []).append(move.ticket)
    found: dict[int, float] = {}
    for channel, tickets in queues.items():
        latency_s = hardware.links[channel].latency_s
        must_s = float("inf")
        for number in reversed(range(len(tickets))):
            due_s = clock.gap_s[waits[tickets[number]]]
            must_s = min(due_s, must_s) - clock.copy_s[channel][number]
            found[tickets[number]] = must_s - latency_s
    return found
