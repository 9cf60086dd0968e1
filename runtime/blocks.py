"""How a request is cut into blocks: pure arithmetic on offsets and addresses.

Direct I/O wants the file offset, the memory address and the length to be whole pages.
Where all three are, a block goes straight to the memory of the request.  Where only the
file side is, it goes through a bounce buffer.  Where the file side is not, because the
page at an edge belongs in part to other data, that edge goes through the page cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from zcompile.ir import PAGE_BYTES, page_aligned

SUM_BYTES = 4
"""The size of the sum of one page."""


class Route(Enum):
    """The way that the bytes of a block take between memory and file."""

    DIRECT = auto()
    BOUNCE = auto()
    BUFFERED = auto()


@dataclass(frozen=True, slots=True)
class Block:
    """``nbytes`` of the tensor ``label`` between ``offset`` of a file and memory ``address``.

    Unless the route is buffered, whole pages travel: the file, and for a direct block the
    memory too, has room up to the end of the page that holds the last byte.
    """

    offset: int
    address: int
    nbytes: int
    route: Route
    label: str
    file: int = 0
    sums: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Where ``nbytes`` of the tensor ``label`` lie in the space of extents, or in one of its files.

    ``memory_room`` and ``file_room`` count the bytes, ``nbytes`` included, that may be
    touched from ``address`` and from ``offset`` on without harm to other data.  ``file`` is the
    number of the file once the span has been placed in one.  ``sums`` is the address of the
    sums of its pages, 0 for none.
    """

    offset: int
    address: int
    nbytes: int
    memory_room: int
    file_room: int
    label: str
    file: int = 0
    sums: int = 0

    def part(self, start: int, nbytes: int, file: int, offset: int) -> Span:
        """Return ``nbytes`` from byte ``start`` of it on, which lie at ``offset`` of ``file``.

        Parts end at pages, or with the span.
        """
        ends = start + nbytes == self.nbytes
        return Span(
            offset,
            self.address + start,
            nbytes,
            self.memory_room - start if ends else nbytes,
            self.file_room - start if ends else nbytes,
            self.label,
            file,
            self.sums_from(start),
        )

    def sums_from(self, start: int) -> int:
        """Return the address of the sums from the page on that holds byte ``start`` of it."""
        pages = (self.offset + start) // PAGE_BYTES - self.offset // PAGE_BYTES
        return self.sums + SUM_BYTES * pages if self.sums else 0


def split(span: Span, block_bytes: int) -> Iterator[Block]:
    """Yield the blocks of ``span`` in ascending order, each of at most ``block_bytes``.

    ``block_bytes`` is a multiple of the page size.  Cuts lie at page boundaries of the
    file, so no page of the file is part of two blocks.
    """
    head = min(-span.offset % PAGE_BYTES, span.nbytes)
    whole = (span.nbytes - head) // PAGE_BYTES * PAGE_BYTES
    tail = span.nbytes - head - whole
    in_memory = Route.BOUNCE if (span.address + head) % PAGE_BYTES else Route.DIRECT
    at_tail = _tail_route(span, in_memory)
    if at_tail is in_memory:  # the last page travels like the pages before it
        whole, tail = whole + tail, 0
    yield from _cut(span, 0, head, Route.BUFFERED, block_bytes)
    yield from _cut(span, head, whole, in_memory, block_bytes)
    yield from _cut(span, head + whole, tail, at_tail, block_bytes)


def cut(nbytes: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ``(start, length)`` of the pieces of ``nbytes``, in ascending order.

    >>> list(cut(10, 4))
    [(0, 4), (4, 4), (8, 2)]
    """
    for start in range(0, nbytes, block_bytes):
        yield start, min(block_bytes, nbytes - start)


def _tail_route(span: Span, in_memory: Route) -> Route:
    """Return how the last, partly covered page of ``span`` can travel."""
    missing = page_aligned(span.offset + span.nbytes) - (span.offset + span.nbytes)
    if span.nbytes + missing > span.file_room:
        return Route.BUFFERED
    if span.nbytes + missing > span.memory_room:
        return Route.BOUNCE
    return in_memory


def _cut(span: Span, start: int, nbytes: int, route: Route, limit: int) -> Iterator[Block]:
    for at, length in cut(nbytes, limit):
        place = start + at
        yield Block(
            span.offset + place,
            span.address + place,
            length,
            route,
            span.label,
            span.file,
            span.sums_from(place),
        )
