"""What a caller holds of a copy in flight."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
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


class InFlight(ABC):
    """The ``Pending`` of one copy, whoever carries it out.

    While the copy is under way it keeps ``keep`` alive: the owners of the memory and of
    the extents that the copy touches.  The time that callers are blocked in ``wait`` is
    counted as exposed.
    """

    __slots__ = ("_error", "_keep", "_ledger", "_pid", "channel")

    def __init__(self, channel: Channel, ledger: Ledger, keep: object) -> None:
        self.channel = channel
        self._ledger = ledger
        self._keep = keep
        self._error: Exception | None = None
        self._pid = os.getpid()

    @property
    def landed(self) -> bool:
        return self._is_over() or self._is_inherited

    @abstractmethod
    def _is_over(self) -> bool:
        """Say whether the copy is over."""

    @abstractmethod
    def _sleep(self) -> None:
        """Return when the copy is over."""

    def wait(self) -> None:
        if not self._is_over():
            self._block()
        if self._error is not None:
            raise self._error

    def _block(self) -> None:
        if self._is_inherited:  # the threads that would finish it are in the parent
            raise RuntimeError("the copy was started by the process that this one was forked from")
        start = time.perf_counter()
        try:
            self._sleep()
        finally:
            self._ledger.exposed(self.channel, time.perf_counter() - start)

    @property
    def _is_inherited(self) -> bool:
        return self._pid != os.getpid()

    def _end(self, error: Exception | None) -> object:
        """Record the end; return what was kept alive."""
        keep, self._keep = self._keep, None
        self._error = error
        return keep


class Completion(InFlight):
    """A copy that a thread of Python finishes."""

    __slots__ = ("_over",)

    def __init__(self, channel: Channel, ledger: Ledger, keep: object) -> None:
        super().__init__(channel, ledger, keep)
        self._over = threading.Event()

    def _is_over(self) -> bool:
        return self._over.is_set()

    def finish(self, error: Exception | None) -> None:
        """Let the waiters go on.  Called once, when no block is under way any more."""
        self._end(error)
        self._over.set()

    def _sleep(self) -> None:
        self._over.wait()
