"""What the executors of one compiled model share: homes, transfers, ledger and arena."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from zcompile.ir import Schedule, Tier, page_aligned
from zcompile.runtime.arena import Arena
from zcompile.runtime.binding import Binding
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.executor import UpdatingExecutor
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.transfers import Transfers

MakeExecutor = Callable[[Schedule, Mapping[str, Binding], Arena, "Machine"], UpdatingExecutor]
"""``CpuExecutor``, or for tests one that is harsher."""


class Machine:
    """Homes, transfers and ledger, and one arena that grows to the largest size asked for."""

    def __init__(
        self,
        homes: Homes,
        transfers: Transfers,
        ledger: Ledger,
        make_executor: MakeExecutor = CpuExecutor,
    ) -> None:
        self.homes = homes
        self.transfers = transfers
        self.ledger = ledger
        self._make_executor = make_executor
        self._turn = _Turn()
        self._arena: Arena | None = None
        self._arena_bytes = 0

    @contextmanager
    def executing(
        self, schedule: Schedule, bindings: Mapping[str, Binding]
    ) -> Generator[UpdatingExecutor, None, None]:
        """Lend an executor for one invocation of ``schedule``, and the arena it needs."""
        with self.lease_arena(schedule.arena_bytes) as arena:
            executor = self._make_executor(schedule, bindings, arena, self)
            try:
                yield executor
            finally:
                executor.close()

    @contextmanager
    def lease_arena(self, nbytes: int) -> Generator[Arena, None, None]:
        """Lend an arena of at least ``nbytes`` to this thread; no more of it takes memory.

        Another thread waits until the lease ends: an executor for which one arena was
        planned never meets a second.  A lease within a lease of the same thread, such as a
        forward that runs inside a backward, gets an arena of its own.  Who needs no bytes
        waits for nobody.
        """
        if nbytes == 0:
            self._vacate_if_idle()
        if nbytes == 0 or self._turn.is_mine():
            arena = self._make(nbytes)
            try:
                yield arena
            finally:
                self._forget(arena)
            return
        with self._turn:
            yield self._sized(nbytes)

    def shrink_arena(self) -> None:
        """Free the arena; the next lease makes it anew.  Waits for a lease to end."""
        with self._turn:
            self._free()

    def close(self) -> None:
        """Finish what is in flight and end all threads; tensors over homes stay valid."""
        self.transfers.close()
        self.homes.close()
        self.shrink_arena()

    def _sized(self, nbytes: int) -> Arena:
        """Return the arena with memory for ``nbytes``, which is what the plan at hand counts.

        Addresses are kept from plan to plan; the memory behind those of a smaller one is
        given back, since the next plan may need it elsewhere.
        """
        nbytes = page_aligned(nbytes)
        if self._arena is None or self._arena.nbytes < nbytes:
            self._free()  # before the next is made: both may not fit
            self._arena = Arena(nbytes)
        else:
            self._arena.vacate(nbytes)
        self.ledger.drop(Tier.DEVICE, self._arena_bytes)
        self.ledger.hold(Tier.DEVICE, nbytes)
        self._arena_bytes = nbytes
        return self._arena

    def _vacate_if_idle(self) -> None:
        if self._turn.take_if_free():
            try:
                self._sized(0)
            finally:
                self._turn.give()

    def _free(self) -> None:
        self._arena = None
        self.ledger.drop(Tier.DEVICE, self._arena_bytes)
        self._arena_bytes = 0

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

    def take_if_free(self) -> bool:
        """Take the turn if nobody has it; say whether it is this thread's now."""
        self._after_fork()
        if not self._lock.acquire(blocking=False):
            return False
        self._holder = threading.get_ident()
        return True

    def give(self) -> None:
        """End the turn."""
        self._holder = None
        self._lock.release()

    def __enter__(self) -> None:
        assert not self.is_mine(), "this thread holds the lease already"
        self._after_fork()
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *_: object) -> None:
        self.give()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.Lock()
