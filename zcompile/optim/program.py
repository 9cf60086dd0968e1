"""The update of many parameters as a schedule of ``Update`` steps: pure planning.

The schedule shows what travels.  A part whose home is the device stays where it is and the
kernel finds it there; its bytes are among the target's reserved ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from zcompile.ir import (
    Compute,
    Kernel,
    Schedule,
    Target,
    Update,
    Value,
    arena_peak_bytes,
    peak_bytes,
)
from zcompile.optim.chunks import Bucket, Member, Part, Piece, Span, buckets

Passes = Callable[[Schedule, Target], Schedule]
"""From a schedule of kernels to one with all its copies."""

MAX_WINDOW_BYTES = 48 << 20
"""The most that one bucket may take: beyond this, larger requests are not faster."""

OVERLAP = 3
"""Buckets on the device at once: one arrives, one is updated, one is on its way home."""


@dataclass(frozen=True, slots=True)
class Program:
    """A planned update.

    ``streamed`` buckets are the ``Update`` steps of ``schedule``, in its order; what the
    ``resident`` ones touch is all on the device, so they need no schedule.
    ``passing_bytes`` is what streaming holds on the device besides homes and the arena at its
    fullest, ``in_place_bytes`` what the kernels of resident buckets do.  ``working_bytes`` is
    the most of everything but homes and I/O buffers.
    """

    members: tuple[Member, ...]
    schedule: Schedule
    streamed: tuple[Bucket, ...]
    resident: tuple[Bucket, ...]
    passing_bytes: int
    in_place_bytes: int
    working_bytes: int


def plan(members: tuple[Member, ...], passes: Passes, target: Target) -> Program:
    """Cut ``members`` into buckets that fit ``target``, and let ``passes`` plan their copies.

    Members come in the order of their groups; those with nothing away come last.
    """
    made = buckets(members, window_bytes(target))
    streamed = tuple(bucket for bucket in made if _travels(bucket, members))
    schedule = Schedule("update", (), ())
    # Nothing here takes more of the host tier: what rests there is changed in place.
    own = replace(target, homes={}, host_budget=None, host_reserved_bytes=0)
    if streamed:
        homes = {value.name: value.home for value in _values(members, streamed)}
        schedule = passes(update_schedule(members, streamed), replace(own, homes=homes))
    resident = made[len(streamed) :]
    in_place_bytes = max((_temporary_bytes(bucket, members) for bucket in resident), default=0)
    if in_place_bytes:
        # There is nothing to move; but it has to fit as well, and counts in the planned peak.
        passes(Schedule("update", (), (Compute("in_place", (), (), in_place_bytes),)), own)
    streaming_bytes = peak_bytes(schedule, replace(own, reserved_bytes=0))
    return Program(
        members,
        schedule,
        streamed,
        resident,
        passing_bytes=streaming_bytes - arena_peak_bytes(schedule),
        in_place_bytes=in_place_bytes,
        working_bytes=max(streaming_bytes, in_place_bytes),
    )


@dataclass(slots=True)
class Memo:
    """The last program of one optimizer: most updates are like the one before."""

    target: Target | None = None
    program: Program | None = None

    def program_for(self, members: tuple[Member, ...], passes: Passes, target: Target) -> Program:
        """Return the program of ``members``, planned anew if anything differs from last time."""
        last = self.program
        if last is None or (last.members, self.target) != (members, target):
            last = self.program = plan(members, passes, target)
            self.target = target
        return last


def window_bytes(target: Target) -> int:
    """Return the device bytes that one bucket may take."""
    if target.device_budget is None:
        return MAX_WINDOW_BYTES
    return min(MAX_WINDOW_BYTES, room_bytes(target) // OVERLAP)


def room_bytes(target: Target) -> int:
    """Return the device bytes that are free for updating; without a budget, the most we use."""
    if target.device_budget is None:
        return OVERLAP * MAX_WINDOW_BYTES
    return max(0, target.device_budget - target.reserved_bytes)


def update_schedule(members: Sequence[Member], streamed: Sequence[Bucket]) -> Schedule:
    """Return the schedule without any copies: one ``Update`` for each bucket, in order.

    States that do not exist yet are made just before it, so nothing is fetched for them.
    """
    steps: list[Kernel] = []
    for index, bucket in enumerate(streamed):
        made_bytes = _nbytes(bucket, members, lambda part: part.made)
        if made_bytes:
            made = _names(bucket, members, lambda part: part.made)
            steps.append(Compute(zeros_name(index), (), made, transient_bytes=made_bytes))
        steps.append(
            Update(
                bucket=bucket_name(index),
                reads=_names(bucket, members, lambda _: True),
                writes=_names(bucket, members, lambda part: part.written),
                transient_bytes=_temporary_bytes(bucket, members),
            )
        )
    return Schedule("update", _values(members, streamed), tuple(steps))


def bucket_name(index: int) -> str:
    """Return the name of the streamed bucket at ``index``."""
    return f"bucket_{index}"


def zeros_name(index: int) -> str:
    """Return the name of the kernel that makes the new states of the bucket at ``index``."""
    return f"zeros_{index}"


def piece_name(part: Part, piece: Piece, members: Sequence[Member]) -> str:
    """Return the name of the value for ``piece`` of ``part``; of a whole, the part's own."""
    whole = piece.numel == members[piece.member].numel
    return part.name if whole else f"{part.name}[{piece.start}:{piece.stop}]"


def _travels(bucket: Bucket, members: Sequence[Member]) -> bool:
    return any(part.away for piece in bucket.pieces for part in members[piece.member].parts)


def _away(bucket: Bucket, members: Sequence[Member]) -> Iterator[tuple[Part, Piece]]:
    for piece in bucket.pieces:
        for part in members[piece.member].parts:
            if part.away:
                yield part, piece


def _names(
    bucket: Bucket, members: Sequence[Member], which: Callable[[Part], bool]
) -> tuple[str, ...]:
    return tuple(
        piece_name(part, piece, members) for part, piece in _away(bucket, members) if which(part)
    )


def _nbytes(bucket: Bucket, members: Sequence[Member], which: Callable[[Part], bool]) -> int:
    return sum(part.nbytes(piece.numel) for part, piece in _away(bucket, members) if which(part))


def _temporary_bytes(bucket: Bucket, members: Sequence[Member]) -> int:
    """Return what the call that holds the most holds beside what it works on."""

    def held_bytes(span: Span) -> int:
        member = members[bucket.pieces[span.piece].member]
        return (span.stop - span.start) * member.itemsize * member.temporaries

    return max(sum(map(held_bytes, call)) for call in bucket.calls)


def _values(members: Sequence[Member], streamed: Sequence[Bucket]) -> tuple[Value, ...]:
    return tuple(
        Value(
            piece_name(part, piece, members),
            part.nbytes(piece.numel),
            part.role,
            part.home,
        )
        for bucket in streamed
        for part, piece in _away(bucket, members)
    )
