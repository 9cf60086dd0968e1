"""The pool of native threads."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

from zcompile.runtime.native import Native

_CHUNK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)


class _Options(ctypes.Structure):
    """``zinf_pool_options``."""

    _fields_ = (("num_threads", ctypes.c_int32), ("pin", ctypes.c_int32))


class Pool:
    """Native threads that share the chunks of one job at a time; they sleep between jobs.

    ``num_threads`` counts the calling thread, which works too; ``None`` means as many as the
    process may run on at once, by its affinity and its control group.  ``pin`` binds each
    thread but the calling one to a CPU.  Threads start with the first job; a forked child
    starts its own.  They end when the pool is collected.
    """

    def __init__(
        self, native: Native, num_threads: int | None = None, *, pin: bool = False
    ) -> None:
        if num_threads is not None and not 1 <= num_threads <= 4096:
            raise ValueError(f"num_threads={num_threads}: give 1 to 4096 threads, or None")
        options = _Options(num_threads or 0, pin)
        handle = ctypes.c_void_p()
        out = ctypes.POINTER(ctypes.c_void_p)
        create = native.function("zinf_pool_create", [ctypes.POINTER(_Options), out])
        native.check(create(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle
        """The ``zinf_pool*``, for native functions that run jobs."""
        self._native = native
        self._run = native.function(
            "zinf_pool_run", [ctypes.c_void_p, ctypes.c_uint64, _CHUNK, ctypes.c_void_p]
        )
        size_of = native.function("zinf_pool_size", [ctypes.c_void_p])
        self.num_threads: int = size_of(handle)
        """How many threads work on a job, the calling one included."""
        destroy = native.function("zinf_pool_destroy", [ctypes.c_void_p], None)
        weakref.finalize(self, destroy, handle).atexit = False

    def run(self, num_chunks: int, chunk: Callable[[int], None]) -> None:
        """Call ``chunk`` with each number below ``num_chunks`` once, in any thread and order.

        It serves tests: each call takes the interpreter lock.  ``chunk`` must not raise.
        """

        def call(_: object, number: int) -> None:
            chunk(number)

        self._native.check(self._run(self.handle, num_chunks, _CHUNK(call), None))
