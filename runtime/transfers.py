"""Copies in flight: four channels, each first in, first out."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Protocol

from zcompile.ir import page_aligned
from zcompile.runtime.blocks import Span
from zcompile.runtime.carrier import Carrier
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.file_io import Choice, FileIO, choose
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.native_carrier import DIRECT_BLOCK_BYTES, NativeCarrier
from zcompile.runtime.native_io import IOKind
from zcompile.runtime.pending import Pending
from zcompile.runtime.python_carrier import PythonCarrier
from zcompile.runtime.syscalls import Syscalls, SystemCalls

WORKERS = 2
"""Bounce buffers for each direction of the file; in Python, threads too."""

BLOCK_BYTES = 1 << 20
"""The size of a bounce buffer, and of the blocks that go through one."""


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


class Transfers:
    """The four channels of one machine: see ``Copies`` for how copies start.

    Copies of one channel start in the order of the calls, except that urgent ones, for
    which somebody waits already, go first.  ``Pending.wait`` raises ``StorageError`` when
    the file cannot be read or written.

    Threads start with the first copy of a channel.  They end with ``close``, when this
    object is collected, or at exit, after what has been started is over.  A forked child
    starts threads of its own.

    ``workers`` buffers of ``block_bytes`` serve each direction of the file where direct I/O
    cannot reach the memory.  ``direct_bytes`` is the size of blocks that need none, where the
    native library does the work.  ``calls`` replace Python's own, and have Python do it.  Raises
    ``ValueError`` when ``io`` does not work here.
    """

    def __init__(
        self,
        file: ExtentFile | None,
        ledger: Ledger,
        *,
        workers: int = WORKERS,
        block_bytes: int = BLOCK_BYTES,
        direct_bytes: int = DIRECT_BLOCK_BYTES,
        io: FileIO = FileIO.AUTO,
        calls: Syscalls | None = None,
    ) -> None:
        assert block_bytes == page_aligned(block_bytes), "blocks are whole pages"
        self.choice: Choice = choose(FileIO.PYTHON if calls else io)
        """How the file is read and written, and why not better."""
        self.carrier: Carrier
        """What carries the copies out."""
        buffered = self.choice.io is FileIO.BUFFERED
        if self.choice.native is None:
            self.carrier = PythonCarrier(
                file,
                ledger,
                calls or SystemCalls(),
                workers=workers,
                block_bytes=block_bytes,
                buffered=buffered,
            )
        else:
            self.carrier = NativeCarrier(
                self.choice.native,
                IOKind.URING if self.choice.io is FileIO.URING else IOKind.THREADS,
                file,
                ledger,
                num_buffers=workers,
                buffer_bytes=block_bytes,
                block_bytes=max(direct_bytes, block_bytes),
                buffered=buffered,
            )
        weakref.finalize(self, self.carrier.retire).atexit = False

    @property
    def buffer_bytes(self) -> int:
        """The most that our own I/O buffers can take on the device tier."""
        return self.carrier.buffer_bytes

    @property
    def buffered_because(self) -> str | None:
        """Why files are not read and written directly; ``None`` while they are."""
        return self.carrier.buffered_because

    def close(self) -> None:
        """Finish what has been started and end the threads.  Later copies are refused."""
        self.carrier.close()

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
        span = read_span(lease, offset, address, nbytes, label, capacity or nbytes)
        return self.carrier.move(Channel.NVME_READ, span, (lease, keep), urgent=urgent)

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
        span = write_span(lease, offset, address, nbytes, label, capacity or nbytes)
        return self.carrier.move(Channel.NVME_WRITE, span, (lease, keep), urgent=urgent)

    def copy_in(
        self, source: int, destination: int, nbytes: int, *, keep: object = None
    ) -> Pending:
        """Implement ``Copies.copy_in``."""
        return self.carrier.copy(Channel.H2D, source, destination, nbytes, keep)

    def copy_out(
        self, source: int, destination: int, nbytes: int, *, keep: object = None
    ) -> Pending:
        """Implement ``Copies.copy_out``."""
        return self.carrier.copy(Channel.D2H, source, destination, nbytes, keep)


def sums_refusal(file: ExtentFile, transfers: Transfers) -> str | None:
    """Return why sums of pages cannot be kept; ``None`` if they can.

    Through the page cache nobody can tell what was written beside the schedules, nor can a kernel
    that does not say what its page cache has had.
    """
    because = transfers.buffered_because or file.direct_fault()
    return f"files go through the page cache: {because}" if because else file.sight_fault()


def read_span(
    lease: Lease, offset: int, address: int, nbytes: int, label: str, memory_room: int
) -> Span:
    """Return what a read of ``nbytes`` from byte ``offset`` of the extent has to move."""
    assert 0 <= offset <= lease.nbytes - nbytes, f"{label} does not lie in {lease}"
    return Span(
        offset=lease.offset + offset,
        address=address,
        nbytes=nbytes,
        memory_room=memory_room,
        file_room=lease.capacity - offset,
        label=label,
        sums=lease.file.sums_at(lease.offset + offset),
    )


def write_span(
    lease: Lease, offset: int, address: int, nbytes: int, label: str, memory_room: int
) -> Span:
    """Return what a write of ``nbytes`` to byte ``offset`` of the extent has to move."""
    ends_the_extent = offset + nbytes == lease.nbytes
    span = read_span(lease, offset, address, nbytes, label, memory_room)
    return span if ends_the_extent else replace(span, file_room=nbytes)
