"""Batches of early updates, and the thread that makes them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch.optim import Optimizer

from zcompile.optim.program import Memo
from zcompile.optim.subjects import Subject
from zcompile.optim.update import Update


@dataclass(slots=True, eq=False)
class Batch:
    """Parameters that one optimizer is expected to update together, and their update once begun."""

    optimizer: weakref.ref[Optimizer]
    names: tuple[str, ...]
    missing: set[str]
    memo: Memo
    update: Update | None = None
    subjects: Mapping[str, Subject] = field(default_factory=dict[str, Subject])
    commit: Callable[[], object] | None = None
    error: Exception | None = None
    dropped: bool = False

    def make(self) -> None:
        """Make the update, in whichever thread; keep what went wrong."""
        update = self.update
        if update is not None and not self.dropped:
            try:
                self.commit = update.make()
            except Exception as error:  # kept: ``step()`` raises it, or makes the update again
                self.error = error
        self.update = None

    def drop(self) -> None:
        """Let go of what was made, or will have been."""
        self.dropped = True
        self.commit = None
        self.subjects = {}


class Worker:
    """Makes batches one by one in a thread, which ends when there are no more."""

    def __init__(self) -> None:
        self._waiting: deque[Batch] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def have(self, batch: Batch) -> None:
        """Have ``batch`` made after those that wait already."""
        with self._lock:
            self._waiting.append(batch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="zinf-early-update")
                self._thread.start()

    def rest(self) -> None:
        """Return when all has been made, or skipped because it was dropped."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                batch = self._waiting.popleft()
            batch.make()
