"""Which elements of which parameters one update step works on: pure arithmetic.

Note [Chunks keep bits].  An update is elementwise, so working on pieces of a tensor gives
the bits of working on the whole as long as every element is computed by the same code.
Measured on torch 2.13 (AVX2 and AVX-512, 1 to 3 threads, sizes around the vector width and
the grain of 32768; ``tests/optim/test_kernels.py`` repeats it):

- Kernels run vector code up to the last whole pair of vectors and scalar code in the tail
  that is left; so does each thread in its share of the elements.
- Single-tensor and foreach updates of fp32 and fp64: scalar and vector code agree in every
  bit.  Any cut is right.
- Fused kernels: the tail differs (fused multiply-add).  They give each thread whole cache
  lines, so there is one tail, at the end of the tensor.  Cuts at multiples of 64 elements,
  the longest pair of vectors, are right.
- Single-tensor and foreach updates of bf16 and fp16: adding with a factor (weight decay as
  L2 penalty, SGD) rounds the factor in the tail only.  Each thread's share has a tail, so
  only a tensor whose shares end at multiples of 64 elements can be cut, and what is cut is
  updated in calls too small to be shared out.
- Fused SGD with momentum in bf16 and fp16 reads past the end of the momentum: its result
  depends on memory that is not part of the tensor.  See ``rules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from zcompile.ir import PAGE_BYTES, Role, Tier, page_aligned

LANES = 64
"""Elements of a pair of the longest vectors (bf16 under AVX-512)."""

GRAIN = 32768
"""Elements below which torch runs an elementwise kernel on one thread."""

CALL_NUMEL = 1 << 16
"""Elements that go into one call of kernels with temporaries: enough to be worth a call, and
few enough for each kernel to find in the cache what the one before it left, and for the
allocator to keep the memory between calls (``docs/decisions/0003-allocator.md``)."""

BARE_CALL_NUMEL = 1 << 24
"""The same for kernels without temporaries: many small parameters share a call."""

SERIAL_NUMEL = GRAIN - 2048
"""The same where no thread may share: whole pages of any type, below the grain."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor that the update of a parameter touches: itself, its gradient or a state.

    It has an item of ``itemsize`` bytes for each ``per`` elements.  ``made`` says that it does
    not exist before the update: it begins as zeros.
    """

    name: str
    role: Role
    home: Tier
    itemsize: int
    written: bool
    made: bool = False
    per: int = 1

    @property
    def away(self) -> bool:
        """Whether its pieces have to travel."""
        return self.home is not Tier.DEVICE

    def nbytes(self, numel: int) -> int:
        """Return the bytes of ``numel`` elements."""
        return self.num_items(numel) * self.itemsize

    def num_items(self, numel: int) -> int:
        """Return how many items ``numel`` elements have."""
        return -(-numel // self.per)


@dataclass(frozen=True, slots=True)
class Member:
    """One parameter to be updated, as far as planning needs to know it.

    Its ``parts`` have ``numel`` elements each.  Members of different ``group`` never meet in a
    bucket.  Its kernels compute with numbers of ``itemsize`` bytes, and hold ``temporaries``
    more tensors of them, of the size that a call works on.  ``tails_differ`` says that scalar
    and vector code disagree within the share of each of torch's ``threads``.
    """

    parts: tuple[Part, ...]
    group: int
    numel: int
    itemsize: int
    temporaries: int
    tails_differ: bool
    threads: int

    @property
    def can_be_cut(self) -> bool:
        """Whether pieces give the bits of the whole: no tail lies inside."""
        num_shares = min(self.threads, ceil(self.numel / GRAIN))
        shares_end_evenly = num_shares < 2 or ceil(self.numel / num_shares) % LANES == 0
        return shares_end_evenly or not self.tails_differ

    @property
    def call_numel(self) -> int:
        """The most elements of it that go into one call of the kernels."""
        if self.can_be_cut and self.tails_differ and self.threads > 1:
            return SERIAL_NUMEL
        if self.temporaries:
            return CALL_NUMEL if self.can_be_cut else self.numel
        return max(self.numel, BARE_CALL_NUMEL)

    def cost_bytes(self, numel: int) -> int:
        """Return the device bytes that the update of ``numel`` elements needs."""
        travelling = sum(page_aligned(part.nbytes(numel)) for part in self.parts if part.away)
        in_call = min(numel, self.call_numel) * self.itemsize
        return travelling + self.temporaries * in_call

    @property
    def page_numel(self) -> int:
        """The least number of elements that are whole pages of every part, scales aside."""
        return PAGE_BYTES // min(part.itemsize for part in self.parts if part.per == 1)

    @property
    def smallest_bytes(self) -> int:
        """The device bytes that its update needs when cut as finely as it can be."""
        start, stop = next(cut(self, 0))
        return self.cost_bytes(stop - start)


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements ``start`` to ``stop``, in memory order, of the member at ``member``."""

    member: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Span:
    """Elements ``start`` to ``stop`` of the piece at ``piece`` of a bucket, counted within it."""

    piece: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """What one ``Update`` step works on.

    ``pieces`` travel as they are.  Each of ``calls`` is what one call of the kernels works
    on; together, and in order, they are the same elements.
    """

    pieces: tuple[Piece, ...]
    calls: tuple[tuple[Span, ...], ...]


def buckets(members: Sequence[Member], window_bytes: int) -> tuple[Bucket, ...]:
    """Cut and group ``members``, in order, into buckets of at most ``window_bytes`` each.

    Large parameters are cut at page boundaries into pieces of nearly equal size, small ones
    share a bucket.  A piece that cannot be cut further is a bucket of its own even if it is
    larger than the window.
    """
    made: list[Bucket] = []
    pieces: list[Piece] = []
    filled_bytes = 0
    for at, member in enumerate(members):
        for start, stop in cut(member, window_bytes):
            cost_bytes = member.cost_bytes(stop - start)
            full = filled_bytes + cost_bytes > window_bytes
            if pieces and (full or members[pieces[0].member].group != member.group):
                made.append(Bucket(tuple(pieces), _calls(pieces, members)))
                pieces, filled_bytes = [], 0
            pieces.append(Piece(at, start, stop))
            filled_bytes += cost_bytes
    if pieces:
        made.append(Bucket(tuple(pieces), _calls(pieces, members)))
    return tuple(made)


def cut(member: Member, window_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` of the pieces of ``member``, the whole if it need not be cut."""
    numel = member.numel
    page_numel = member.page_numel
    num_pieces = max(1, ceil(member.cost_bytes(numel) / max(window_bytes, 1)))
    piece_numel = ceil(ceil(numel / num_pieces) / page_numel) * page_numel
    while piece_numel > page_numel and member.cost_bytes(piece_numel) > window_bytes:
        piece_numel -= page_numel
    yield from _ranges(numel, piece_numel if member.can_be_cut else numel)


def _calls(pieces: Sequence[Piece], members: Sequence[Member]) -> tuple[tuple[Span, ...], ...]:
    """Cut and group ``pieces`` into what one call works on."""
    made: list[tuple[Span, ...]] = []
    call: list[Span] = []
    called_numel = 0
    for at, piece in enumerate(pieces):
        limit = members[piece.member].call_numel
        for start, stop in _ranges(piece.numel, limit):
            if call and called_numel + stop - start > limit:
                made.append(tuple(call))
                call, called_numel = [], 0
            call.append(Span(at, start, stop))
            called_numel += stop - start
    return (*made, tuple(call))


def _ranges(numel: int, length: int) -> Iterator[tuple[int, int]]:
    for start in range(0, numel, length):
        yield start, min(start + length, numel)
