"""A thread that keeps few pages of mapped files resident while eager code walks homes."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from zcompile.runtime.procfs import FilePages

WINDOW_BYTES = 8 << 20
"""How much may be resident before the thread trims."""

IDLE_SECONDS = 0.002
"""Between polls.  Cached pages are mapped at up to 25 GB/s: 48 MiB within this time."""

BUSY_SECONDS = 0.0002
"""Between polls while the resident bytes grow."""


@dataclass
class Watch:
    """Decides from the resident bytes of mapped files when to trim.

    ``baseline_bytes`` is what trimming cannot remove, such as libraries: the least that
    was seen since the last trim.
    """

    window_bytes: int
    baseline_bytes: int
    seen_bytes: int = 0
    seconds: float = IDLE_SECONDS

    def look(self, resident_bytes: int) -> bool:
        """Return whether to trim now; ``seconds`` then says when to look again."""
        grows = resident_bytes > self.seen_bytes
        self.seconds = BUSY_SECONDS if grows else min(2 * self.seconds, IDLE_SECONDS)
        self.seen_bytes = resident_bytes
        self.baseline_bytes = min(self.baseline_bytes, resident_bytes)
        return resident_bytes - self.baseline_bytes > self.window_bytes

    def trimmed(self, resident_bytes: int) -> None:
        """Learn what was left after a trim."""
        self.seen_bytes = self.baseline_bytes = resident_bytes


class Trimmer:
    """Calls ``trim``, a bound method, whenever more than a window of file pages is resident.

    The thread starts with ``start`` and ends with ``stop``, or when the method's owner is
    collected, which it holds weakly.  A forked child has no such thread.
    """

    def __init__(self, trim: Callable[[], None], window_bytes: int = WINDOW_BYTES) -> None:
        self._trim = weakref.WeakMethod(trim)
        self._window_bytes = window_bytes
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it was started or stopped before."""
        if self._thread is None and not self._stopped.is_set():
            self._thread = threading.Thread(
                target=_run,
                args=(self._trim, self._window_bytes, self._stopped),
                name="zinf-trimmer",
                daemon=True,
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread for good."""
        self._stopped.set()
        # The collector may run a finalizer that comes here on any thread, this one included.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _hurry() -> None:
    """Go before ordinary threads, if this user may: else a loaded machine wakes us too late."""
    with suppress(PermissionError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_RR, os.sched_param(1))


def _run(
    trim: weakref.WeakMethod[Callable[[], None]], window_bytes: int, stopped: threading.Event
) -> None:
    _hurry()
    pages = FilePages()
    try:
        watch = Watch(window_bytes, pages.resident_bytes())
        while not stopped.is_set():
            # A plain sleep costs half of a timed wait; closing waits for one at most.
            time.sleep(watch.seconds)
            owned = trim()
            if owned is None:
                return
            if watch.look(pages.resident_bytes()):
                owned()
                watch.trimmed(pages.resident_bytes())
            del owned
    finally:
        pages.close()
