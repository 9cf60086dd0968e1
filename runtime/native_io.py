"""The native input and output engine, typed: one class over the C functions of ``zinf.h``."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from zcompile.runtime.native import Native

_REASON_BYTES = 160
_REAPED_AT_ONCE = 64


class IOChannel(IntEnum):
    """A queue of the engine: the two directions of files, and two of memory."""

    READ = 0
    WRITE = 1
    COPY_IN = 2
    COPY_OUT = 3


class IOKind(IntEnum):
    """How the engine moves bytes between memory and files."""

    URING = 1
    THREADS = 2


class _Direction(ctypes.Structure):
    _fields_ = (
        ("depth", ctypes.c_uint32),
        ("num_buffers", ctypes.c_uint32),
        ("block_bytes", ctypes.c_uint64),
        ("buffer_bytes", ctypes.c_uint64),
    )


class _Options(ctypes.Structure):
    _fields_ = (
        ("engine", ctypes.c_int32),
        ("buffered", ctypes.c_int32),
        ("register_buffers", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("read", _Direction),
        ("write", _Direction),
    )


class File(ctypes.Structure):
    """``zinf_io_file``."""

    _fields_ = (("fd", ctypes.c_int32), ("direct_fd", ctypes.c_int32))


class _Span(ctypes.Structure):
    _fields_ = (
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("memory_room", ctypes.c_uint64),
        ("file_room", ctypes.c_uint64),
        ("sums", ctypes.c_uint64),
        ("file", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class _Request(ctypes.Structure):
    _fields_ = (
        ("files", ctypes.POINTER(File)),
        ("spans", ctypes.POINTER(_Span)),
        ("num_files", ctypes.c_uint32),
        ("num_spans", ctypes.c_uint32),
    )


class Result(ctypes.Structure):
    """``zinf_io_result``."""

    _fields_ = (
        ("ticket", ctypes.c_uint64),
        ("moved_bytes", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("file", ctypes.c_uint32),
        ("error", ctypes.c_int32),
    )


class _Status(ctypes.Structure):
    _fields_ = (
        ("engine", ctypes.c_int32),
        ("buffered", ctypes.c_int32),
        ("registered", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        ("buffer_bytes", ctypes.c_uint64),
        ("num_active", ctypes.c_uint64),
        ("engine_reason", ctypes.c_char * _REASON_BYTES),
        ("buffered_reason", ctypes.c_char * _REASON_BYTES),
        ("registered_reason", ctypes.c_char * _REASON_BYTES),
    )


class IOCall(ctypes.Structure):
    """One call for a part of a block, as a fault sees and changes it: ``zinf_io_call``."""

    serial: int
    offset: int
    nbytes: int
    result: int
    channel: int
    direct: int
    _fields_ = (
        ("serial", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("channel", ctypes.c_int32),
        ("direct", ctypes.c_int32),
    )


_FAULT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(IOCall))


@dataclass(frozen=True, slots=True)
class Direction:
    """How one direction of files is used.

    ``depth`` blocks of at most ``block_bytes`` are under way at once.  Memory that direct I/O
    cannot reach goes through ``num_buffers`` buffers of ``buffer_bytes``.  Sizes are whole pages.
    """

    depth: int
    num_buffers: int
    block_bytes: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class FilePair:
    """One file, opened twice; ``direct_fd`` with O_DIRECT, or -1."""

    fd: int
    direct_fd: int


@dataclass(frozen=True, slots=True)
class IOSpan:
    """``nbytes`` between byte ``offset`` of the file at ``file`` and memory at ``address``.

    The rooms, ``nbytes`` included, say what may be touched on either side.  ``sums`` is the
    address of 4 bytes for each page of the file that the span touches, 0 for none; the caller
    keeps them.  When memory is copied, ``offset`` is the address of the source.
    """

    offset: int
    address: int
    nbytes: int
    memory_room: int = 0
    file_room: int = 0
    sums: int = 0
    file: int = 0


@dataclass(frozen=True, slots=True)
class IOResult:
    """How a request ended: ``error`` is an errno, 0 for success; the rest says where it failed."""

    ticket: int
    moved_bytes: int
    error: int
    file: int
    offset: int
    nbytes: int

    @classmethod
    def of(cls, made: Any) -> IOResult:
        """Return what a ``Result`` says."""
        return cls(made.ticket, made.moved_bytes, made.error, made.file, made.offset, made.nbytes)


@dataclass(frozen=True, slots=True)
class IOStatus:
    """What the engine does now, and why it does not do better; bytes are those of its buffers."""

    kind: IOKind
    kind_because: str
    buffered_because: str | None
    registered_because: str | None
    num_threads: int
    buffer_bytes: int
    num_active: int


def uring_refusal(native: Native) -> str | None:
    """Return why io_uring cannot be used here, ``None`` if it can."""
    probe = native.function("zinf_io_probe_uring", [ctypes.c_char_p, ctypes.c_uint64])
    reason = ctypes.create_string_buffer(_REASON_BYTES)
    code: int = probe(reason, len(reason))
    return reason.value.decode() if code < 0 else None


class NativeIO:
    """Four queues of requests, served by native threads that never need the interpreter lock.

    Whoever submits keeps memory, descriptors and checksums alive until the request is over.  The
    engine is drained and freed by ``close``, when it is collected, or at exit.
    """

    def __init__(
        self,
        native: Native,
        kind: IOKind,
        *,
        read: Direction,
        write: Direction,
        buffered: bool = False,
        register_buffers: bool = False,
    ) -> None:
        options = _Options(kind, buffered, register_buffers, 0, _direction(read), _direction(write))
        self._native = native
        self._handle = ctypes.c_void_p()
        create = native.function("zinf_io_create", [ctypes.c_void_p, ctypes.c_void_p])
        native.check(create(ctypes.byref(options), ctypes.byref(self._handle)))
        one = [ctypes.c_void_p]
        destroy = native.function("zinf_io_destroy", one, None)
        self._closing = weakref.finalize(self, _destroy, destroy, self._handle.value, os.getpid())
        self._retire = native.function("zinf_io_retire", one, None)
        self._submit = native.function(
            "zinf_io_submit",
            [*one, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(_Request), ctypes.c_void_p],
        )
        self._wait = native.function("zinf_io_wait", [*one, ctypes.c_uint64, ctypes.c_int64])
        self._cancel = native.function("zinf_io_cancel", [*one, ctypes.c_uint64])
        self._reap = native.function("zinf_io_reap", [*one, ctypes.c_void_p, ctypes.c_int32])
        self._status = native.function("zinf_io_get_status", [*one, ctypes.c_void_p])
        self._fault: Any = None

    def submit(
        self,
        channel: IOChannel,
        spans: Sequence[IOSpan],
        files: Sequence[FilePair] = (),
        *,
        urgent: bool = False,
    ) -> int:
        """Queue a request; return its ticket.

        Raises ``NativeError``: EINVAL for what makes no sense, ESHUTDOWN once retired.
        """
        c_files = (File * len(files))(*(File(file.fd, file.direct_fd) for file in files))
        c_spans = (_Span * len(spans))(
            *(
                _Span(s.offset, s.address, s.nbytes, s.memory_room, s.file_room, s.sums, s.file)
                for s in spans
            )
        )
        request = _Request(c_files, c_spans, len(files), len(spans))
        ticket = ctypes.c_uint64()
        self._native.check(
            self._submit(self._handle, channel, urgent, ctypes.byref(request), ctypes.byref(ticket))
        )
        return ticket.value

    def wait(self, ticket: int, seconds: float | None = None) -> bool:
        """Block until the request is over, or for so long; return whether it is."""
        milliseconds = -1 if seconds is None else int(seconds * 1000)
        code: int = self._wait(self._handle, ticket, milliseconds)
        return code == 0

    def cancel(self, ticket: int) -> bool:
        """Start no further block of the request; return whether any was left."""
        code: int = self._cancel(self._handle, ticket)
        return code == 0

    def reap(self) -> list[IOResult]:
        """Return how requests have ended since the last call, each once."""
        reaped: list[IOResult] = []
        results = (Result * _REAPED_AT_ONCE)()
        while True:
            count: int = self._reap(self._handle, results, _REAPED_AT_ONCE)
            reaped += [IOResult.of(result) for result in results[:count]]
            if count < _REAPED_AT_ONCE:
                return reaped

    def status(self) -> IOStatus:
        """Return what the engine does now."""
        status = _Status()
        self._native.check(self._status(self._handle, ctypes.byref(status)))
        return IOStatus(
            kind=IOKind(status.engine),
            kind_because=status.engine_reason.decode(),
            buffered_because=status.buffered_reason.decode() or None,
            registered_because=status.registered_reason.decode() or None,
            num_threads=status.num_threads,
            buffer_bytes=status.buffer_bytes,
            num_active=status.num_active,
        )

    def inject(self, fault: Callable[[bool, IOCall], None] | None) -> None:
        """Call ``fault`` before (``False``) and after (``True``) every call; ``None`` ends it.

        It may lower ``nbytes`` before, or change ``result``.  It runs in threads of the engine.
        """

        def call(_: object, after: int, made: Any) -> None:
            assert fault is not None
            fault(bool(after), made.contents)

        before = self._fault  # a call under way may still use it
        self._fault = _FAULT(call) if fault else _FAULT()
        set_fault = self._native.function(
            "zinf_io_set_fault", [ctypes.c_void_p, _FAULT, ctypes.c_void_p], None
        )
        set_fault(self._handle, self._fault, None)
        del before

    @property
    def handle(self) -> ctypes.c_void_p:
        """The ``zinf_io*``, for native functions that use the engine; valid until ``close``."""
        return self._handle

    def retire(self) -> None:
        """Accept no more requests; the threads end once nothing is left."""
        if self._closing.alive:
            self._retire(self._handle)

    def close(self) -> None:
        """Finish what was submitted, end the threads and free everything; again is harmless."""
        self._closing()
        self._handle = ctypes.c_void_p()

    @property
    def closed(self) -> bool:
        """Whether it has been closed: nothing may be called then."""
        return not self._closing.alive


def _direction(given: Direction) -> _Direction:
    return _Direction(given.depth, given.num_buffers, given.block_bytes, given.buffer_bytes)


def _destroy(destroy: Callable[[int | None], None], handle: int | None, pid: int) -> None:
    if os.getpid() == pid:  # the threads of a forked child's engine are in its parent
        destroy(handle)
