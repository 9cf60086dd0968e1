"""What a caller holds of a copy in flight."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

from zcompile.runtime.ledger import Channel, Ledger


class Pending(Protocol):
    """A copy in flight."""

    @property
    def landed(self) -> bool:
        """Whether ``wait`` would return, or raise, at once."""
        ...

    def wait(self) -> None:
        """Block until the copy is over; raise what went wrong with it, at every call."""
        ...


class Completion:
    """The ``Pending`` of one copy, which the queue that carries it out finishes.

    While the copy is under way it keeps ``keep`` alive: the owners of the memory and of
    the extents that the copy touches.  The time that callers are blocked in ``wait`` is
    counted as exposed.
    """

    __slots__ = ("_channel", "_error", "_keep", "_ledger", "_over", "_pid")

    def __init__(self, channel: Channel, ledger: Ledger, keep: object) -> None:
        self._channel = channel
        self._ledger = ledger
        self._keep = keep
        self._over = threading.Event()
        self._error: Exception | None = None
        self._pid = os.getpid()

    @property
    def landed(self) -> bool:
        return self._over.is_set()

    def finish(self, error: Exception | None) -> None:
        """Let the waiters go on.  Called once, when no block is under way any more."""
        self._error = error
        self._keep = None
        self._over.set()

    def wait(self) -> None:
        if not self._over.is_set():
            self._block()
        if self._error is not None:
            raise self._error

    def _block(self) -> None:
        if self._pid != os.getpid():  # the threads that would finish it are in the parent
            raise RuntimeError("the copy was started by the process that this one was forked from")
        start = time.perf_counter()
        try:
            self._over.wait()
        finally:
            self._ledger.exposed(self._channel, time.perf_counter() - start)
