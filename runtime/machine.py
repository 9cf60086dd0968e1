"""What the executors of one compiled model share: homes, transfers, ledger and arena."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from zcompile.ir import Tier
from zcompile.runtime.arena import Arena
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.transfers import Transfers


class Machine:
    """Homes, transfers and ledger, and one arena that grows to the largest size asked for."""

    def __init__(self, homes: Homes, transfers: Transfers, ledger: Ledger) -> None:
        self.homes = homes
        self.transfers = transfers
        self.ledger = ledger
        self._turn = _Turn()
        self._arena: Arena | None = None

    @contextmanager
    def lease_arena(self, nbytes: int) -> Generator[Arena, None, None]:
        """Lend an arena of at least ``nbytes`` to this thread.

        Another thread waits until the lease ends: an executor for which one arena was
        planned never meets a second.  A lease within a lease of the same thread, such as a
        forward that runs inside a backward, gets an arena of its own, and so does who needs
        no bytes.
        """
        if nbytes == 0 or self._turn.is_mine():
            arena = self._make(nbytes)
            try:
                yield arena
            finally:
                self._forget(arena)
            return
        with self._turn:
            yield self._grown(nbytes)

    def shrink_arena(self) -> None:
        """Free the arena; the next lease makes it anew.  Waits for a lease to end."""
        with self._turn:
            if self._arena is not None:
                self._forget(self._arena)
                self._arena = None

    def close(self) -> None:
        """Finish what is in flight and end all threads; tensors over homes stay valid."""
        self.transfers.close()
        self.homes.close()
        self.shrink_arena()

    def _grown(self, nbytes: int) -> Arena:
        if self._arena is None or self._arena.nbytes < nbytes:
            if self._arena is not None:  # freed before the next is made: both may not fit
                self._forget(self._arena)
                self._arena = None
            self._arena = self._make(nbytes)
        return self._arena

    def _make(self, nbytes: int) -> Arena:
        arena = Arena(nbytes)
        self.ledger.hold(Tier.DEVICE, arena.nbytes)
        return arena

    def _forget(self, arena: Arena) -> None:
        self.ledger.drop(Tier.DEVICE, arena.nbytes)


class _Turn:
    """A lock that knows which thread holds it; a forked child finds it free."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._holder: int | None = None

    def is_mine(self) -> bool:
        """Whether the calling thread holds it."""
        return self._holder == threading.get_ident()

    def __enter__(self) -> None:
        assert not self.is_mine(), "this thread holds the lease already"
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.Lock()
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self._holder = None
        self._lock.release()
