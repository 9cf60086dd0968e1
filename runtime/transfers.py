"""Copies in flight: four channels, each first in, first out."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from zcompile.ir import page_aligned
from zcompile.runtime.blocks import Block, Span, cut, split
from zcompile.runtime.copy_queue import Carry, CopyQueue
from zcompile.runtime.disk import Disk, FileIO
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.pending import Completion, Pending
from zcompile.runtime.syscalls import Syscalls, SystemCalls

WORKERS = 2
"""Threads for each direction of the file."""

BLOCK_BYTES = 1 << 20
"""The file is read and written in blocks of this size: several threads share a large tensor."""

COPY_BYTES = 4 << 20
"""Memory is copied in blocks of this size, so that an urgent copy soon gets its turn."""


class Copies(Protocol):
    """Starts copies and returns at once: see ``Transfers``.

    Memory is given by address.  Its owner, the tensor say, goes in as ``keep`` and is kept
    alive until the copy is over.
    """

    def read(
        self,
        lease: Lease,
        offset: int,
        address: int,
        nbytes: int,
        label: str,
        *,
        capacity: int | None = None,
        keep: object = None,
        urgent: bool = False,
    ) -> Pending:
        """Read ``nbytes`` from byte ``offset`` of the extent into memory.

        ``capacity`` is how many bytes at ``address`` may be overwritten, if more than
        ``nbytes``: with room for whole pages the last page needs no detour.
        """
        ...

    def write(
        self,
        lease: Lease,
        offset: int,
        address: int,
        nbytes: int,
        label: str,
        *,
        capacity: int | None = None,
        keep: object = None,
        urgent: bool = False,
    ) -> Pending:
        """Write ``nbytes`` of memory to byte ``offset`` of the extent.

        ``capacity`` is how many bytes at ``address`` may be read, if more than ``nbytes``.
        """
        ...

    def copy_in(
        self, source: int, destination: int, nbytes: int, *, keep: object = None
    ) -> Pending:
        """Copy ``nbytes`` of memory towards the device."""
        ...

    def copy_out(
        self, source: int, destination: int, nbytes: int, *, keep: object = None
    ) -> Pending:
        """Copy ``nbytes`` of memory away from the device."""
        ...


@dataclass(frozen=True, slots=True)
class _Piece:
    """One block of a copy from memory to memory."""

    source: int
    destination: int
    nbytes: int


class Transfers:
    """The four channels of one machine: see ``Copies`` for how copies start.

    Copies of one channel start in the order of the calls, except that urgent ones, for
    which somebody waits already, go first.  ``Pending.wait`` raises ``StorageError`` when
    the file cannot be read or written.

    Threads start with the first copy of a channel.  They end with ``close``, when this
    object is collected, or at exit, after what has been started is over.  A forked child
    starts threads of its own.
    """

    def __init__(
        self,
        file: ExtentFile | None,
        ledger: Ledger,
        *,
        workers: int = WORKERS,
        block_bytes: int = BLOCK_BYTES,
        io: FileIO = FileIO.AUTO,
        calls: Syscalls | None = None,
    ) -> None:
        assert block_bytes == page_aligned(block_bytes), "blocks are whole pages"
        calls = calls or SystemCalls()
        self._ledger = ledger
        self._workers = workers
        self._block_bytes = block_bytes
        self._disk = Disk(file, io, ledger, calls) if file else None
        self._ins = CopyQueue(Channel.H2D, partial(_copier, calls, ledger, Channel.H2D), 1)
        self._outs = CopyQueue(Channel.D2H, partial(_copier, calls, ledger, Channel.D2H), 1)
        self._reads: CopyQueue[Block] | None = None
        self._writes: CopyQueue[Block] | None = None
        if self._disk:
            reader = partial(self._disk.reader, block_bytes)
            writer = partial(self._disk.writer, block_bytes)
            self._reads = CopyQueue(Channel.NVME_READ, reader, workers)
            self._writes = CopyQueue(Channel.NVME_WRITE, writer, workers)
        queues = (self._ins, self._outs, self._reads, self._writes)
        self._queues = tuple(queue for queue in queues if queue is not None)
        weakref.finalize(self, _retire, self._queues).atexit = False

    @property
    def buffer_bytes(self) -> int:
        """The most that our own I/O buffers can take on the device tier."""
        return 0 if self.buffered_because else 2 * self._workers * self._block_bytes

    @property
    def buffered_because(self) -> str | None:
        """Why files are not read and written directly; ``None`` while they are."""
        return self._disk.buffered_because if self._disk else "there is no file"

    def close(self) -> None:
        """Finish what has been started and end the threads.  Later copies are refused."""
        for queue in self._queues:
            queue.close()

    def read(
        self,
        lease: Lease,
        offset: int,
        address: int,
        nbytes: int,
        label: str,
        *,
        capacity: int | None = None,
        keep: object = None,
        urgent: bool = False,
    ) -> Pending:
        """Implement ``Copies.read``."""
        assert self._reads is not None, "there is no file to read from"
        assert 0 <= offset <= lease.nbytes - nbytes, f"{label} does not lie in {lease}"
        span = Span(
            offset=lease.offset + offset,
            address=address,
            nbytes=nbytes,
            memory_room=capacity or nbytes,
            file_room=lease.capacity - offset,
            label=label,
        )
        completion = Completion(Channel.NVME_READ, self._ledger, (lease, keep))
        self._reads.submit(split(span, self._block_bytes), completion, urgent=urgent)
        return completion

    def write(
        self,
        lease: Lease,
        offset: int,
        address: int,
        nbytes: int,
        label: str,
        *,
        capacity: int | None = None,
        keep: object = None,
        urgent: bool = False,
    ) -> Pending:
        """Implement ``Copies.write``."""
        assert self._writes is not None, "there is no file to write to"
        assert 0 <= offset <= lease.nbytes - nbytes, f"{label} does not lie in {lease}"
        ends_the_extent = offset + nbytes == lease.nbytes
        span = Span(
            offset=lease.offset + offset,
            address=address,
            nbytes=nbytes,
            memory_room=capacity or nbytes,
            file_room=lease.capacity - offset if ends_the_extent else nbytes,
            label=label,
        )
        completion = Completion(Channel.NVME_WRITE, self._ledger, (lease, keep))
        self._writes.submit(split(span, self._block_bytes), completion, urgent=urgent)
        return completion

    def copy_in(
        self, source: int, destination: int, nbytes: int, *, keep: object = None
    ) -> Pending:
        """Implement ``Copies.copy_in``."""
        completion = Completion(Channel.H2D, self._ledger, keep)
        self._ins.submit(_pieces(source, destination, nbytes), completion)
        return completion

    def copy_out(
        self, source: int, destination: int, nbytes: int, *, keep: object = None
    ) -> Pending:
        """Implement ``Copies.copy_out``."""
        completion = Completion(Channel.D2H, self._ledger, keep)
        self._outs.submit(_pieces(source, destination, nbytes), completion)
        return completion


def _retire(queues: Iterable[CopyQueue[Any]]) -> None:
    for queue in queues:
        queue.retire()


def _pieces(source: int, destination: int, nbytes: int) -> Iterator[_Piece]:
    for start, length in cut(nbytes, COPY_BYTES):
        yield _Piece(source + start, destination + start, length)


@contextmanager
def _copier(
    calls: Syscalls, ledger: Ledger, channel: Channel
) -> Generator[Carry[_Piece], None, None]:
    """Give one thread what it copies memory with."""

    def copy(piece: _Piece) -> None:
        calls.copy(piece.destination, piece.source, piece.nbytes)
        ledger.moved(channel, piece.nbytes)

    yield copy
