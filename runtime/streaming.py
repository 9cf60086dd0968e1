"""A planned update carried out by the native library, without the interpreter between steps.

Note [A program is its schedule].  The schedule that passes planned and the verifier checked
stays the truth about what is held.  ``translate`` writes its steps down for the library one by one
and in their order: a fetch starts a read, a wait and a release await, an update runs.  Only
what cannot be told apart is put together: fetches that follow each other and that the same
kernel needs are one request, likewise offloads that are awaited behind the same kernel, and
bytes that lie side by side in the file and in memory are one span of it.  Kernels that the
library does not have run in Python, between two steps of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol, cast

from torch import Tensor

from zcompile.ir import (
    Channel,
    Compute,
    Fetch,
    Offload,
    Release,
    Schedule,
    Step,
    Update,
    Wait,
    page_aligned,
)
from zcompile.runtime.blocks import Span
from zcompile.runtime.native_carrier import QUEUES
from zcompile.runtime.native_stream import Program, SpanRow, StepKind, UpdateCall
from zcompile.runtime.spot import Move


class Moves(Protocol):
    """Where the values of a schedule are, as the executor of the invocation knows it."""

    def fetched(self, step: Fetch) -> tuple[Move, Tensor]:
        """Return the copy that ``step`` starts, and the tensor that it lands in."""
        ...

    def offloaded(self, step: Offload, tensor: Tensor) -> Move:
        """Return the copy that ``step`` starts; from here on the value rests at its end."""
        ...

    def vacated(self, value: str) -> tuple[int, int] | None:
        """Return address and bytes of the slot that a release gives back, if it does."""
        ...


Calls = Callable[[str, Mapping[str, Tensor]], Sequence[UpdateCall] | None]
"""From an update and its tensors to its native calls; ``None`` where Python has to run it."""


Place = Callable[[Span], Sequence[Span]]
"""From bytes of the extents to where they lie in files."""


@dataclass(slots=True)
class Translation:
    """A program, and what its parts are in the schedule.

    ``updates`` names those of the library, each with its first step in the program; ``returns``
    those that Python runs, in order, with their tensors.  ``spans`` has what each request was
    made of, ``kept`` the owners of all memory and extents.
    """

    program: Program = field(default_factory=Program)
    updates: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    returns: list[tuple[str, dict[str, Tensor]]] = field(
        default_factory=list[tuple[str, dict[str, Tensor]]]
    )
    spans: list[Sequence[Span]] = field(default_factory=list[Sequence[Span]])
    kept: list[object] = field(default_factory=list[object])

    def native_updates_begun(self, num_done: int) -> Iterator[str]:
        """Yield the updates of the library that had begun when so many steps were over."""
        for first, name in self.updates:
            if first <= num_done:
                yield name

    def label(self, request: int, file: int, offset: int, placed: Place) -> str:
        """Return the value that ``request`` moves at byte ``offset`` of the file at ``file``."""
        spans = self.spans[request]
        parts = (part for each in spans for part in placed(each) if part.file == file)
        there = (each for each in parts if each.offset <= offset < each.offset + each.file_room)
        return next(there, spans[0]).label


def can_translate(schedule: Schedule) -> bool:
    """Whether ``schedule`` has no kernels besides updates."""
    return not any(isinstance(step, Compute) for step in schedule.steps)


class Translator:
    """Writes a schedule down for the library, in two parts: ``begin`` first, then ``finish``.

    Every value is fetched once, before its update, as in every schedule of an update.
    """

    def __init__(self, schedule: Schedule, moves: Moves, calls: Calls, placed: Place) -> None:
        assert can_translate(schedule), "only updates are translated"
        self._moves = moves
        self._calls = calls
        self._placed = placed
        self._tensors: dict[str, Tensor] = {}
        self._request_of: dict[int, int] = {}
        self._awaited: set[int] = set()
        self._ends = _ends(schedule)
        self._groups = groupby(schedule.steps, type)
        self.translation = Translation()

    def begin(self) -> Translation:
        """Write down the first steps, usually fetches, which can start while the rest is."""
        for kind, steps in self._groups:
            self._together(kind, list(steps))
            break
        return self.translation

    def finish(self) -> Translation:
        """Write down the rest, behind what was there."""
        for kind, steps in self._groups:
            self._together(kind, list(steps))
        return self.translation

    def _together(self, kind: type[Step], steps: Sequence[Step]) -> None:
        """Write down ``steps``, which follow each other and are all of one kind."""
        if kind is Fetch:
            self._start((each.ticket, self._fetched(each)) for each in cast("list[Fetch]", steps))
            return
        if kind is Offload:
            offloads = cast("list[Offload]", steps)
            self._start(
                (each.ticket, self._moves.offloaded(each, self._tensors[each.value]))
                for each in offloads
            )
            return
        for step in steps:
            match step:
                case Wait(ticket):
                    self._await(ticket)
                case Release():
                    self._release(step)
                case Update():
                    self._update(step)
                case _:
                    raise AssertionError(f"{step} does not belong to an update")

    def _fetched(self, step: Fetch) -> Move:
        assert step.value not in self._tensors, f"%{step.value} is fetched twice in one update"
        move, self._tensors[step.value] = self._moves.fetched(step)
        return move

    def _start(self, started: Iterable[tuple[int, Move]]) -> None:
        groups: dict[tuple[Channel, int], list[tuple[int, Move]]] = {}
        for ticket, move in started:
            groups.setdefault((move.channel, self._ends[ticket]), []).append((ticket, move))
        for (channel, _), members in groups.items():
            self._request(channel, members)

    def _request(self, channel: Channel, members: Sequence[tuple[int, Move]]) -> None:
        made, program = self.translation, self.translation.program
        number = len(program.requests)
        self._request_of.update((ticket, number) for ticket, _ in members)
        moves = [move for _, move in members if move.span.nbytes]
        joined = join(move.span for move in moves)
        if channel in (Channel.NVME_READ, Channel.NVME_WRITE):
            joined = [part for each in joined for part in self._placed(each)]
        program.requests.append((QUEUES[channel], len(joined), len(program.spans)))
        program.spans += [_row(each) for each in joined]
        program.steps.append((StepKind.START, number))
        made.spans.append([move.span for move in moves])
        made.kept += [move.keep for move in moves]

    def _await(self, ticket: int) -> None:
        request = self._request_of[ticket]
        if request not in self._awaited:
            self._awaited.add(request)
            self.translation.program.steps.append((StepKind.AWAIT, request))

    def _release(self, step: Release) -> None:
        if step.after is not None:
            self._await(step.after)
        vacancy = self._moves.vacated(step.value)
        if vacancy is not None:
            program = self.translation.program
            program.steps.append((StepKind.VACATE, len(program.vacancies)))
            program.vacancies.append(vacancy)

    def _update(self, step: Update) -> None:
        made, program = self.translation, self.translation.program
        tensors = {value: self._tensors[value] for value in step.reads}
        calls = self._calls(step.bucket, tensors)
        if calls is None:
            program.steps.append((StepKind.RETURN, 0))
            made.returns.append((step.bucket, tensors))
        else:
            first = len(program.updates)
            made.updates.append((len(program.steps), step.bucket))
            program.updates += calls
            program.steps += [(StepKind.UPDATE, first + at) for at in range(len(calls))]


def _row(span: Span) -> SpanRow:
    rooms = (span.memory_room, span.file_room)
    return (span.offset, span.address, span.nbytes, *rooms, span.sums, span.file, 0)


def _ends(schedule: Schedule) -> dict[int, int]:
    """Return for each ticket how many kernels come before it is awaited."""
    ends: dict[int, int] = {}
    num_kernels = 0
    for step in schedule.steps:
        match step:
            case Update() | Compute():
                num_kernels += 1
            case Wait(ticket) | Release(_, int(ticket)):
                ends[ticket] = num_kernels
            case _:
                pass
    return ends


def join(spans: Iterable[Span]) -> list[Span]:
    """Return ``spans``, of one direction, with those joined that are neighbours on both sides.

    The pages between the end of one and the start of the next are room of the first.
    """
    joined: list[Span] = []
    for span in sorted(spans, key=lambda each: each.offset):
        if joined and _are_neighbours(joined[-1], span):
            before = joined[-1]
            gap = span.offset - before.offset
            joined[-1] = Span(
                before.offset,
                before.address,
                gap + span.nbytes,
                gap + span.memory_room,
                gap + span.file_room,
                before.label,
                sums=before.sums,
            )
        else:
            joined.append(span)
    return joined


def _are_neighbours(one: Span, other: Span) -> bool:
    distance = other.offset - one.offset
    return (
        distance == page_aligned(one.nbytes)
        and other.address - one.address == distance
        and one.memory_room >= distance
        and one.file_room >= distance
    )
