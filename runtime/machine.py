"""What the executors of one compiled model share: homes, transfers, ledger and arena."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from zcompile.ir import (
    PAGE_BYTES,
    Schedule,
    Tier,
    arena_peak_bytes,
    held_after_moves,
    page_aligned,
)
from zcompile.runtime.arena import Arena
from zcompile.runtime.binding import Binding
from zcompile.runtime.cpu import CpuExecutor, Landed
from zcompile.runtime.executor import UpdatingExecutor
from zcompile.runtime.gradient_facts import GradientFacts
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.retention import RetainingLittle, Retention, slack_bytes
from zcompile.runtime.transfers import Transfers

MakeExecutor = Callable[[Schedule, Mapping[str, Binding], Arena, "Machine"], UpdatingExecutor]
"""``CpuExecutor``, or for tests one that is harsher."""


MAX_KNOWN = 16
"""Schedules of which is kept what they hold: more than the graphs of most models."""


class Machine:
    """Homes, transfers and ledger, and one arena that grows to the largest size asked for."""

    def __init__(
        self,
        homes: Homes,
        transfers: Transfers,
        ledger: Ledger,
        make_executor: MakeExecutor = CpuExecutor,
        *,
        device_budget: int | None = None,
    ) -> None:
        self.homes = homes
        self.transfers = transfers
        self.ledger = ledger
        self.facts = GradientFacts(homes)
        self.on_landed: Callable[[Landed], None] | None = None
        """Called with every gradient that has come home, as soon as it is there."""
        self._make_executor = make_executor
        self._device_budget = device_budget
        self._turn = _Turn()
        self._arena: Arena | None = None
        self._arena_bytes = 0
        self._held: deque[tuple[Schedule, Sequence[int]]] = deque(maxlen=MAX_KNOWN)
        self._beside: Arena | None = None
        self._beside_turn = threading.Lock()

    @contextmanager
    def executing(
        self, schedule: Schedule, bindings: Mapping[str, Binding]
    ) -> Generator[UpdatingExecutor, None, None]:
        """Lend an executor for one invocation of ``schedule``, and the arena it needs.

        Pages of homes that eager code has left resident go first: the schedule's budget has
        no room for them.
        """
        self.homes.trim()
        self.homes.look()
        held_bytes = arena_peak_bytes(schedule) if schedule.vacates else None
        with self.lease_arena(schedule.arena_bytes, held_bytes=held_bytes) as arena:
            executor = self._make_executor(schedule, bindings, arena, self)
            if self._device_budget is not None:
                retention = Retention(self._held_by(schedule), slack_bytes(self._device_budget))
                executor = RetainingLittle(executor, retention)
            try:
                yield executor
            finally:
                executor.close()

    def landed(self, gradient: Landed) -> None:
        """Take note that a new gradient is in its home."""
        if self.on_landed is not None:
            self.on_landed(gradient)

    @contextmanager
    def executing_beside(
        self, schedule: Schedule, bindings: Mapping[str, Binding]
    ) -> Generator[UpdatingExecutor, None, None]:
        """Lend an executor, to one thread at a time, whatever others are executing.

        Its arena is a second one.  It stays, and counts, from one invocation to the next.
        """
        self.homes.look()
        with self._beside_turn:
            executor = self._make_executor(schedule, bindings, self._second_arena(schedule), self)
            try:
                yield executor
            finally:
                executor.close()

    def _held_by(self, schedule: Schedule) -> Sequence[int]:
        """Return what is held after each move; a step or a graph asks for it every time."""
        for known, held in list(self._held):
            if known is schedule:
                return held
        held = tuple(held_after_moves(schedule))
        self._held.append((schedule, held))
        return held

    def _second_arena(self, schedule: Schedule) -> Arena:
        if self._beside is None or self._beside.nbytes < schedule.arena_bytes:
            self._free_beside()
            self._beside = Arena(schedule.arena_bytes)
            self.ledger.hold(Tier.DEVICE, self._beside.nbytes)
        return self._beside

    def keep_beside_at_most(self, nbytes: int) -> None:
        """Give the second arena back if it is larger than that; waits while it is lent."""
        if self._beside is not None and self._beside.nbytes > nbytes:
            with self._beside_turn:
                self._free_beside()

    def _free_beside(self) -> None:
        if self._beside is not None:
            self.ledger.drop(Tier.DEVICE, self._beside.nbytes)
            self._beside = None

    @contextmanager
    def lease_arena(
        self, nbytes: int, *, held_bytes: int | None = None
    ) -> Generator[Arena, None, None]:
        """Lend an arena of at least ``nbytes`` to this thread; no more of it takes memory.

        With ``held_bytes`` the arena is lent empty, for an executor that vacates its slots
        and never holds more than so many bytes at once: they are what counts, and only
        while the lease lasts.

        Another thread waits until the lease ends: an executor for which one arena was
        planned never meets a second.  A lease within a lease of the same thread, such as a
        forward that runs inside a backward, gets an arena of its own.  Who needs no bytes
        waits for nobody.
        """
        by_slot = held_bytes is not None
        counted_bytes = page_aligned(nbytes) if held_bytes is None else held_bytes
        if nbytes == 0:
            self.keep_at_most(0)
        if nbytes == 0 or self._turn.is_mine():
            with self.ledger.holding(Tier.DEVICE, counted_bytes):
                yield Arena(nbytes, huge_pages=not by_slot)
            return
        with self._turn:
            arena = self._mapped(page_aligned(nbytes), huge_pages=not by_slot)
            self._hold(0 if by_slot else page_aligned(nbytes), counted_bytes)
            try:
                yield arena
            finally:
                if by_slot:
                    self._hold(0, 0)

    def keep_at_most(self, nbytes: int) -> None:
        """Give back what the arena holds beyond ``nbytes``, for work that needs none of it.

        Nothing happens while it is lent.
        """
        if self._turn.take_if_free():
            try:
                kept_bytes = min(self._arena_bytes, nbytes // PAGE_BYTES * PAGE_BYTES)
                self._hold(kept_bytes, kept_bytes)
            finally:
                self._turn.give()

    def shrink_arena(self) -> None:
        """Free the arena; the next lease makes it anew.  Waits for a lease to end."""
        with self._turn:
            self._free()

    def close(self) -> None:
        """Finish what is in flight and end all threads; tensors over homes stay valid."""
        self.transfers.close()
        self.homes.close()
        self.shrink_arena()
        with self._beside_turn:
            self._free_beside()

    def _mapped(self, nbytes: int, *, huge_pages: bool) -> Arena:
        """Return the arena with addresses for ``nbytes``; they are kept from plan to plan."""
        if (
            self._arena is None
            or self._arena.nbytes < nbytes
            or self._arena.huge_pages != huge_pages
        ):
            self._free()  # before the next is made: both may not fit
            self._arena = Arena(nbytes, huge_pages=huge_pages)
        return self._arena

    def _hold(self, nbytes: int, counted_bytes: int) -> None:
        """Keep the memory behind the first ``nbytes`` of the arena, and count what is given.

        The rest is given back, since the plan at hand may need it elsewhere.
        """
        if self._arena is not None:
            self._arena.vacate(nbytes)
        self.ledger.drop(Tier.DEVICE, self._arena_bytes)
        self.ledger.hold(Tier.DEVICE, counted_bytes)
        self._arena_bytes = counted_bytes

    def _free(self) -> None:
        self._arena = None
        self._hold(0, 0)


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
