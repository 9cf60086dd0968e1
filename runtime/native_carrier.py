"""Copies by the native engine, whose threads never need the interpreter lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from zcompile.ir import Tier
from zcompile.runtime.blocks import Span
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.native import Native
from zcompile.runtime.native_io import (
    Direction,
    FilePair,
    IOChannel,
    IOKind,
    IOResult,
    IOSpan,
    IOStatus,
    NativeIO,
)
from zcompile.runtime.native_stream import NativeStream, Program
from zcompile.runtime.pending import InFlight, Pending
from zcompile.runtime.pool import Pool

DIRECT_BLOCK_BYTES = 4 << 20
"""Aligned memory is read and written in blocks of this size, which take no buffer."""

DEPTHS = {IOKind.URING: 8, IOKind.THREADS: 4}
"""Blocks under way at once in one direction of a file: a ring costs nothing for more, a thread
does."""

MAX_DEPTH = 32
"""The most for all files together."""

SLICE_SECONDS = 0.2
"""A wait returns to the interpreter this often, which then notices an interrupt."""

QUEUES: Mapping[Channel, IOChannel] = {
    Channel.NVME_READ: IOChannel.READ,
    Channel.NVME_WRITE: IOChannel.WRITE,
    Channel.H2D: IOChannel.COPY_IN,
    Channel.D2H: IOChannel.COPY_OUT,
}
"""The queue of the engine that serves each channel."""


class NativeCarrier:
    """Implements ``Carrier``: ``num_buffers`` bounce buffers of ``buffer_bytes`` a direction."""

    def __init__(
        self,
        native: Native,
        kind: IOKind,
        file: ExtentFile | None,
        ledger: Ledger,
        *,
        num_buffers: int,
        buffer_bytes: int,
        block_bytes: int = DIRECT_BLOCK_BYTES,
        buffered: bool = False,
    ) -> None:
        self._native = native
        self._kind = kind
        self._file = file
        self._ledger = ledger
        num_files = len(file.files) if file else 1
        depth = min(DEPTHS[kind] * num_files, MAX_DEPTH)
        self._direction = Direction(depth, num_buffers, block_bytes, buffer_bytes)
        self._buffered = buffered
        self._closed = False
        self._start()

    def _start(self) -> None:
        """Begin with nothing in flight, and no thread before the first copy."""
        self._pid = os.getpid()
        self._lock = threading.RLock()  # a finalizer may start a copy inside any of our calls
        self._flying: dict[int, _Flight] = {}
        self._early: dict[int, IOResult] = {}
        self._streams: set[NativeStream] = set()
        self._buffers_held_bytes = 0
        self.io = NativeIO(
            self._native,
            self._kind,
            read=self._direction,
            write=self._direction,
            buffered=self._buffered,
            register_buffers=True,
        )
        """The engine, for its status and for tests that inject faults."""
        self._last_status = self.io.status()

    @property
    def buffer_bytes(self) -> int:
        direction = self._direction
        none_direct = self._file is None or all(each.direct_refusal for each in self._file.files)
        if none_direct or self.status().buffered_because:
            return 0
        return 2 * direction.num_buffers * direction.buffer_bytes

    @property
    def buffered_because(self) -> str | None:
        if self._file is None:
            return "there is no file"
        return self._file.direct_refusal or self.status().buffered_because

    def status(self) -> IOStatus:
        """Return what the engine does now, or did when it was closed or the process forked."""
        usable = not self._closed and self._pid == os.getpid()
        return self.io.status() if usable else self._last_status

    def move(self, channel: Channel, span: Span, keep: object, *, urgent: bool) -> Pending:
        assert self._file is not None, "there is no file"
        pieces = [
            IOSpan(
                each.offset,
                each.address,
                each.nbytes,
                each.memory_room,
                each.file_room,
                each.sums,
                each.file,
            )
            for each in self._file.placed(span)
        ]
        return self._submit(channel, pieces, self._files(), span.label, keep, urgent=urgent)

    def placed(self, span: Span) -> Sequence[Span]:
        """Return ``span`` of the extents as spans of their files."""
        assert self._file is not None, "there is no file"
        return self._file.placed(span)

    def copy(
        self, channel: Channel, source: int, destination: int, nbytes: int, keep: object
    ) -> Pending:
        pieces = [IOSpan(source, destination, nbytes)]
        return self._submit(channel, pieces, [], "memory", keep, urgent=False)

    def open_stream(self, program: Program, pool: Pool | None) -> NativeStream:
        """Return ``program`` ready to run; to be ended with ``end_stream``."""
        self._check_open()
        with self._lock:
            stream = NativeStream(self._native, self.io, pool, program, self._files())
            self._streams.add(stream)
        return stream

    def end_stream(self, stream: NativeStream) -> None:
        """Let go of a stream that is closed."""
        with self._lock:
            self._streams.discard(stream)
            if not self._closed:
                self._count_buffers()

    def retire(self) -> None:
        if self._pid == os.getpid() and not self._closed:
            self.io.retire()

    def close(self) -> None:
        if self._pid != os.getpid() or self._closed:
            self._closed = True
            return
        self.io.retire()
        for stream in list(self._streams):
            stream.close()
        for ticket in list(self._flying):
            self.io.wait(ticket)
        self.reap()
        self._last_status = self.io.status()
        self._closed = True
        self.io.close()
        self._ledger.drop(Tier.DEVICE, self._buffers_held_bytes)
        self._buffers_held_bytes = 0

    def _submit(
        self,
        channel: Channel,
        pieces: Sequence[IOSpan],
        files: list[FilePair],
        label: str,
        keep: object,
        *,
        urgent: bool,
    ) -> Pending:
        self._check_open()
        flight = _Flight(self, channel, self._ledger, label, keep)
        if not any(each.nbytes for each in pieces):
            flight.land(None)
            return flight
        with self._lock:
            flight.ticket = self.io.submit(QUEUES[channel], pieces, files, urgent=urgent)
            self._flying[flight.ticket] = flight
            if flight.ticket in self._early:
                self._settle(self._early.pop(flight.ticket))
        self.reap()
        return flight

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("no copy can start any more: the transfers are closed")
        if self._pid != os.getpid():
            self._start()  # the threads and the lock are the parent's

    def _files(self) -> list[FilePair]:
        if self._file is None:
            return []
        return [
            FilePair(each.fd, -1 if each.direct_fd is None else each.direct_fd)
            for each in self._file.files
        ]

    def wait(self, ticket: int) -> None:
        """Block until the copy is over, its result recorded."""
        io = self.io
        while not io.wait(ticket, SLICE_SECONDS):
            pass
        self.reap()

    def reap(self) -> None:
        """Record the results of copies that are over; let go of what they kept alive."""
        kept: list[Any] = []
        with self._lock:
            if self._closed:
                return
            kept += [self._settle(result) for result in self.io.reap()]
            if kept:
                self._count_buffers()
        kept.clear()  # outside the lock: what they kept alive may be finalized here

    def _settle(self, result: IOResult) -> object:
        """Record how a copy has ended; return what it kept alive."""
        flight = self._flying.pop(result.ticket, None)
        if flight is None:  # a finalizer that ran within ``_submit`` reaps before it has gone on
            self._early[result.ticket] = result
            return None
        if result.moved_bytes:
            self._ledger.moved(flight.channel, result.moved_bytes)
        failed = result.error != 0
        error = self.failure(flight.channel, result, flight.label) if failed else None
        return flight.land(error)

    def _count_buffers(self) -> None:
        held_bytes = self.io.status().buffer_bytes
        if held_bytes != self._buffers_held_bytes:
            self._ledger.hold(Tier.DEVICE, held_bytes - self._buffers_held_bytes)
            self._buffers_held_bytes = held_bytes

    def failure(self, channel: Channel, result: IOResult, label: str) -> StorageError:
        """Return the error of a copy of ``label`` that has ended with ``result``."""
        assert self._file is not None, "copies of memory do not fail"
        action = "read" if channel is Channel.NVME_READ else "write"
        file = self._file.files[result.file]
        return file.error(action, result.error, result.offset, result.nbytes, label)


class _Flight(InFlight):
    """A copy that the native library finishes; it is known to be over when it has been reaped."""

    __slots__ = ("_carrier", "_landed", "label", "ticket")

    def __init__(
        self, carrier: NativeCarrier, channel: Channel, ledger: Ledger, label: str, keep: object
    ) -> None:
        super().__init__(channel, ledger, keep)
        self.label = label
        self.ticket = 0
        self._carrier = carrier
        self._landed = False

    def _is_over(self) -> bool:
        if not self._landed and not self._is_inherited:
            self._carrier.reap()
        return self._landed

    def land(self, error: Exception | None) -> object:
        """Record the end; return what was kept alive."""
        keep = self._end(error)
        self._landed = True  # last: whoever sees it looks at the error next
        return keep

    def _sleep(self) -> None:
        self._carrier.wait(self.ticket)
        assert self._landed, "a copy that is over has been reaped"
