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
  L2 penalty, SGD) rounds the factor in the tail only.  Each thread's share has a tail: cuts
  are right only where neither the whole nor a piece has a share that ends inside.
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


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor that the update of a parameter touches: itself, its gradient or a state.

    ``made`` says that it does not exist before the update: it begins as zeros.
    """

    name: str
    role: Role
    home: Tier
    written: bool
    made: bool = False

    @property
    def away(self) -> bool:
        """Whether its pieces have to travel."""
        return self.home is not Tier.DEVICE


@dataclass(frozen=True, slots=True)
class Member:
    """One parameter to be updated, as far as planning needs to know it.

    Its ``parts`` are alike: ``numel`` elements of ``itemsize`` bytes.  ``temporaries`` is
    how many more copies of a piece its kernels hold at once.  Members of different
    ``group`` are never in one bucket.  ``tails_differ`` says that scalar and vector code
    disagree within each thread's share.
    """

    parts: tuple[Part, ...]
    group: int
    numel: int
    itemsize: int
    temporaries: int
    tails_differ: bool = False

    def cost_bytes(self, numel: int) -> int:
        """Return the device bytes that the update of ``numel`` elements needs."""
        nbytes = numel * self.itemsize
        num_away = sum(part.away for part in self.parts)
        return num_away * page_aligned(nbytes) + self.temporaries * nbytes

    def smallest_bytes(self, threads: int) -> int:
        """Return the device bytes that its update needs when cut as finely as it can be."""
        start, stop = next(cut(self, 0, threads))
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


Bucket = tuple[Piece, ...]
"""What one ``Update`` step works on."""


def shares_end_evenly(numel: int, threads: int) -> bool:
    """Return whether no thread but the last has a tail when ``numel`` elements are shared out.

    >>> shares_end_evenly(32767, 2), shares_end_evenly(65536, 2), shares_end_evenly(65538, 2)
    (True, True, False)
    """
    num_shares = min(threads, ceil(numel / GRAIN))
    if numel < GRAIN or num_shares < 2:
        return True
    return ceil(numel / num_shares) % LANES == 0


def buckets(members: Sequence[Member], window_bytes: int, threads: int) -> tuple[Bucket, ...]:
    """Cut and group ``members``, in order, into buckets of at most ``window_bytes`` each.

    Large parameters are cut at page boundaries into pieces of nearly equal size, small ones
    share a bucket.  A piece that cannot be cut further is a bucket of its own even if it is
    larger than the window.  ``threads`` is torch's number of threads.
    """
    made: list[Bucket] = []
    open_bucket: list[Piece] = []
    filled_bytes = 0
    for at, member in enumerate(members):
        for start, stop in cut(member, window_bytes, threads):
            cost_bytes = member.cost_bytes(stop - start)
            full = filled_bytes + cost_bytes > window_bytes
            if open_bucket and (full or members[open_bucket[0].member].group != member.group):
                made.append(tuple(open_bucket))
                open_bucket, filled_bytes = [], 0
            open_bucket.append(Piece(at, start, stop))
            filled_bytes += cost_bytes
    if open_bucket:
        made.append(tuple(open_bucket))
    return tuple(made)


def cut(member: Member, window_bytes: int, threads: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` of the pieces of ``member``, the whole if it need not be cut."""
    numel = member.numel
    page_numel = PAGE_BYTES // member.itemsize
    num_pieces = max(1, ceil(member.cost_bytes(numel) / max(window_bytes, 1)))
    piece_numel = ceil(ceil(numel / num_pieces) / page_numel) * page_numel
    while piece_numel > page_numel and member.cost_bytes(piece_numel) > window_bytes:
        piece_numel -= page_numel
    if member.tails_differ and not _even(numel, piece_numel, threads):
        piece_numel = numel
    for start in range(0, numel, piece_numel):
        yield start, min(start + piece_numel, numel)


def _even(numel: int, piece_numel: int, threads: int) -> bool:
    """Return whether all of the whole, a piece and the last piece are shared out evenly."""
    return all(
        shares_end_evenly(each, threads) for each in (numel, piece_numel, numel % piece_numel)
    )
