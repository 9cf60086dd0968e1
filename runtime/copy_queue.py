"""The copies of one channel: a queue of requests and the threads that carry them out."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from zcompile.runtime.ledger import Channel
from zcompile.runtime.pending import Completion

B = TypeVar("B")

Carry = Callable[[B], None]
"""Carries out one block; what it raises becomes the error of the whole request."""

Outfit = Callable[[], AbstractContextManager[Carry[B]]]
"""Called once in each thread: holds what the thread needs, a bounce buffer say."""


class CopyQueue(Generic[B]):
    """Starts requests in the order of ``submit``; several threads share their blocks.

    Urgent requests overtake the others.  Threads start with the first request.  They hold
    the backlog and never whoever owns the queue, so an owner can simply be dropped: its
    finalizer calls ``retire``.  A forked child begins with nothing queued.
    """

    def __init__(self, channel: Channel, outfit: Outfit[B], workers: int) -> None:
        self._channel = channel
        self._outfit = outfit
        self._workers = workers
        self._backlog: _Backlog[B] = _Backlog()
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()

    def submit(self, blocks: Iterator[B], completion: Completion, *, urgent: bool = False) -> None:
        """Queue ``blocks``; ``completion`` is finished when the last of them is over."""
        request = _Request(blocks, completion)
        if request.exhausted:
            completion.finish(None)
            return
        self._renew_after_fork()
        self._start_threads()
        self._backlog.put(request, urgent=urgent)

    def retire(self) -> None:
        """Let the threads end once nothing is queued, without waiting for them.

        Safe in a finalizer: one may run in any thread, in the middle of any call.
        """
        atexit.unregister(self.close)
        self._backlog.close()

    def close(self) -> None:
        """Carry out what is queued, then end the threads."""
        self.retire()
        if self._backlog.is_ours():
            for thread in self._threads:
                thread.join()

    def _renew_after_fork(self) -> None:
        if not self._backlog.is_ours():  # its lock may be held by a thread that is not here
            self._backlog, self._threads, self._starting = _Backlog(), [], threading.Lock()

    def _start_threads(self) -> None:
        if self._threads or self._backlog.closed:
            return
        with self._starting:
            while len(self._threads) < self._workers:
                thread = threading.Thread(
                    target=_serve,
                    args=(self._backlog, self._outfit),
                    name=f"zinf-{self._channel}-{len(self._threads)}",
                    daemon=True,
                )
                thread.start()
                self._threads.append(thread)
            # At exit no copy may still run into memory that the interpreter frees.
            atexit.register(self.close)


class _Request(Generic[B]):
    """One copy: the blocks that have not started and the number of those under way."""

    __slots__ = ("_blocks", "_completion", "_error", "_next", "_under_way")

    def __init__(self, blocks: Iterator[B], completion: Completion) -> None:
        self._completion = completion
        self._blocks = blocks
        self._next = next(blocks, None)
        self._under_way = 0
        self._error: Exception | None = None

    @property
    def exhausted(self) -> bool:
        """Whether no block is left to start."""
        return self._next is None

    def start_block(self) -> B:
        block = self._next
        assert block is not None, "every block has started"
        self._next = next(self._blocks, None)
        self._under_way += 1
        return block

    def finish_block(self, error: Exception | None) -> bool:
        """Record the end of one block; return whether the request is over."""
        self._under_way -= 1
        if error is not None:
            self._error = self._error or error
            self._next = None  # the blocks that have not started never will
        return self.exhausted and self._under_way == 0

    def finish(self) -> None:
        self._completion.finish(self._error)


class _Backlog(Generic[B]):
    """The requests that have blocks left to start, in the order of their start.

    The lock is re-entrant because ``close`` may run in a finalizer, inside another method.
    """

    def __init__(self) -> None:
        self.closed = False
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.RLock())
        self._planned: deque[_Request[B]] = deque()
        self._urgent: deque[_Request[B]] = deque()

    def is_ours(self) -> bool:
        """Whether this process made it, and not the one that it was forked from."""
        return self._pid == os.getpid()

    def put(self, request: _Request[B], *, urgent: bool) -> None:
        with self._changed:
            if self.closed:
                raise ValueError("no copy can start any more: the transfers are closed")
            (self._urgent if urgent else self._planned).append(request)
            self._changed.notify_all()

    def close(self) -> None:
        if self.is_ours():
            with self._changed:
                self.closed = True
                self._changed.notify_all()

    def take(self) -> tuple[_Request[B], B] | None:
        """Return the next block and its request; ``None`` once closed and empty."""
        with self._changed:
            while not (queue := self._urgent or self._planned):
                if self.closed:
                    return None
                self._changed.wait()
            request = queue[0]
            block = request.start_block()
            if request.exhausted:
                queue.popleft()
            return request, block

    def finish_block(self, request: _Request[B], error: Exception | None) -> None:
        with self._changed:
            if error is not None and not request.exhausted:
                (self._urgent if request in self._urgent else self._planned).remove(request)
            over = request.finish_block(error)
        if over:  # outside the lock: what the request kept alive may be finalized here
            request.finish()


def _serve(backlog: _Backlog[B], outfit: Outfit[B]) -> None:
    """Carry out blocks until the backlog is closed and empty: the life of one thread."""
    with outfit() as carry:
        while (job := backlog.take()) is not None:
            request, block = job
            backlog.finish_block(request, _carried(carry, block))
            del job, request, block  # or an idle thread would keep the last copy alive


def _carried(carry: Carry[B], block: B) -> Exception | None:
    try:
        carry(block)
    except Exception as error:
        return error  # the request hands it to whoever waits
    return None
