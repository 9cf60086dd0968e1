"""Programs of copies and updates that the native library runs without the interpreter.

``Program`` is written down by ``streaming.translate``; ``NativeStream`` runs it, a slice of time
at a time, over the C functions of ``zinf_stream.h``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from zcompile.runtime.native import Native
from zcompile.runtime.native_io import File as CFile
from zcompile.runtime.native_io import FilePair, IOChannel, IOResult, NativeIO
from zcompile.runtime.native_io import Result as CResult
from zcompile.runtime.native_optim import Formula, call_of
from zcompile.runtime.optim_batch import ROW, Batch
from zcompile.runtime.pool import Pool

TIMED_OUT = 110
"""``ETIMEDOUT``: the slice of time is over."""


class StepKind(IntEnum):
    """What one step of a program does."""

    START = 0
    AWAIT = 1
    UPDATE = 2
    VACATE = 3
    RETURN = 4


STEP = np.dtype([("kind", "i4"), ("index", "u4")])
REQUEST = np.dtype([("channel", "i4"), ("num_spans", "u4"), ("first_span", "u8")])
SPAN = np.dtype(
    [
        ("offset", "u8"),
        ("address", "u8"),
        ("nbytes", "u8"),
        ("memory_room", "u8"),
        ("file_room", "u8"),
        ("sums", "u8"),
        ("file", "u4"),
        ("reserved", "u4"),
    ]
)
SpanRow = tuple[int, int, int, int, int, int, int, int]
"""A row of ``SPAN``."""

VACANCY = np.dtype([("address", "u8"), ("nbytes", "u8")])
UPDATE = np.dtype([("call", "u8"), ("first_tensor", "u8"), ("num_tensors", "i8")])


class _Program(ctypes.Structure):
    """``zinf_stream_program``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("steps", "requests", "spans", "updates")),
        *((name, ctypes.c_void_p) for name in ("tensors", "vacancies", "files")),
        *((f"num_{name}", ctypes.c_uint64) for name in ("steps", "requests", "spans", "updates")),
        *((f"num_{name}", ctypes.c_uint64) for name in ("tensors", "vacancies", "files")),
    )


class _Progress(ctypes.Structure):
    """``zinf_stream_progress``."""

    _fields_ = (
        ("num_done", ctypes.c_uint64),
        ("failed_request", ctypes.c_uint64),
        ("result", CResult),
        ("moved_bytes", ctypes.c_uint64 * len(IOChannel)),
        ("waited_ns", ctypes.c_uint64 * len(IOChannel)),
    )


@dataclass(frozen=True, slots=True)
class UpdateCall:
    """One call of the native optimizers."""

    formula: Formula
    batch: Batch


@dataclass(slots=True)
class Program:
    """Steps by kind and index into the lists beside them; ``spans`` are rows of ``SPAN``."""

    steps: list[tuple[StepKind, int]] = field(default_factory=list[tuple[StepKind, int]])
    requests: list[tuple[IOChannel, int, int]] = field(
        default_factory=list[tuple[IOChannel, int, int]]
    )
    """Channel, number of spans and first span of each request."""
    spans: list[SpanRow] = field(default_factory=list[SpanRow])
    updates: list[UpdateCall] = field(default_factory=list[UpdateCall])
    vacancies: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Address and bytes of what is given back to the system."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a program is: steps done, and by channel the bytes moved and seconds waited."""

    num_done: int
    moved_bytes: Mapping[IOChannel, int]
    waited_seconds: Mapping[IOChannel, float]


class RequestFailed(Exception):
    """The request at index ``request`` of a program failed."""

    def __init__(self, request: int, result: IOResult) -> None:
        super().__init__(request, result)
        self.request = request
        self.result = result


class NativeStream:
    """Runs one program on an engine and a pool; holds both, and every array of the program.

    What memory and files the program names stays the caller's, who keeps it until ``close``.
    ``close`` may come from another thread: it waits for the slice at hand.
    """

    def __init__(
        self,
        native: Native,
        io: NativeIO,
        pool: Pool | None,
        program: Program,
        files: Sequence[FilePair],
    ) -> None:
        self._native = native
        self._lock = threading.RLock()
        self._kept: list[object] = [io, pool, program]
        self._handle = ctypes.c_void_p()
        self._files = files
        c_program = self._written_down(program)
        create = native.function(
            "zinf_stream_create",
            [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p],
        )
        self._run = native.function(
            "zinf_stream_run", [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        )
        self._extend = native.function("zinf_stream_extend", [ctypes.c_void_p, ctypes.c_void_p])
        self._destroy = native.function(
            "zinf_stream_destroy", [ctypes.c_void_p, ctypes.c_void_p], None
        )
        pool_handle = None if pool is None else pool.handle
        native.check(
            create(io.handle, pool_handle, ctypes.byref(c_program), ctypes.byref(self._handle))
        )
        self._progress = _Progress()
        self._closed = False

    def run(self, seconds: float) -> bool:
        """Go on for about ``seconds``, or to the next ``RETURN``; return whether it came to one.

        ``done`` says whether all is over.  Raises ``RequestFailed``, ``NativeError`` if the engine
        accepts no more, and ``ValueError`` once closed.
        """
        with self._lock:
            if self._closed:
                raise ValueError("no copy can start any more: the transfers are closed")
            milliseconds = max(1, int(seconds * 1000))
            code: int = self._run(self._handle, milliseconds, ctypes.byref(self._progress))
        if code == -TIMED_OUT:
            return False
        if code < 0 and self._progress.result.error:
            raise RequestFailed(self._progress.failed_request, IOResult.of(self._progress.result))
        return self._native.check(code) == 1

    def extend(self, program: Program) -> None:
        """Go on with ``program``, which begins with all that the one so far had.

        Raises ``NativeError`` for one that does not make sense, and ``ValueError`` once closed.
        """
        with self._lock:
            if self._closed:
                raise ValueError("no copy can start any more: the transfers are closed")
            self._native.check(
                self._extend(self._handle, ctypes.byref(self._written_down(program)))
            )

    @property
    def progress(self) -> Progress:
        """How far it had come when the last slice, or all of it, ended."""
        made = self._progress
        return Progress(
            made.num_done,
            {channel: made.moved_bytes[channel] for channel in IOChannel},
            {channel: made.waited_ns[channel] / 1e9 for channel in IOChannel},
        )

    def close(self) -> None:
        """Start no further block, wait for those under way, and free all; again is harmless."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._destroy(self._handle, ctypes.byref(self._progress))
                self._kept.clear()

    def _written_down(self, program: Program) -> _Program:
        """Return ``program`` as the library takes it; keep what it points to."""
        files = self._files
        c_files = (CFile * len(files))(*(CFile(each.fd, each.direct_fd) for each in files))
        calls = [call_of(each.formula, each.batch) for each in program.updates]
        sizes = [len(each.batch.rows) for each in program.updates]
        firsts = np.cumsum([0, *sizes])[: len(sizes)].tolist()
        rows = [each.batch.rows for each in program.updates]
        arrays = {
            "steps": np.array(program.steps, STEP),
            "requests": np.array(program.requests, REQUEST),
            "spans": np.array(program.spans, SPAN),
            "updates": np.array(
                [
                    (ctypes.addressof(call), first, size)
                    for call, first, size in zip(calls, firsts, sizes, strict=True)
                ],
                UPDATE,
            ),
            "tensors": np.concatenate(rows) if rows else np.zeros(0, ROW),
            "vacancies": np.array(program.vacancies, VACANCY),
        }
        self._kept += [c_files, calls, arrays]
        pointers = {name: array.ctypes.data for name, array in arrays.items()}
        counts = {f"num_{name}": len(array) for name, array in arrays.items()}
        return _Program(**pointers, files=ctypes.addressof(c_files), num_files=len(files), **counts)
