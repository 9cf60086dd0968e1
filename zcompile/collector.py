"""Spare Python's garbage collector the objects that a compilation walks past but does not drop.

A graph of thousands of operations is hundreds of thousands of objects, and tracing, splitting
and cutting it make many more.  The collector goes over all of them again and again and finds
next to nothing: for a deep model that was a quarter of the time after tracing.  While a
compilation runs, what is there already is set aside (``gc.freeze``, which CPython offers for
processes that are about to fork); what is made and dropped meanwhile is collected as ever.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spared:
    """What has been set aside, and whether by us."""

    ours: bool

    def more(self) -> None:
        """Set aside what has come since."""
        if self.ours and gc.get_freeze_count():
            gc.freeze()


@contextmanager
def sparing_the_collector() -> Generator[Spared, None, None]:
    """Within, the collector leaves alone what was there at the start.

    Where something has been set aside already, by an outer compilation, by one in another
    thread or by the user, nothing is done: it is not ours to bring back.

    >>> with sparing_the_collector() as spared:
    ...     spared.more()
    ...     gc.get_freeze_count() > 0
    True
    >>> gc.get_freeze_count()
    0
    """
    spared = Spared(ours=gc.get_freeze_count() == 0)
    if spared.ours:
        gc.freeze()
    try:
        yield spared
    finally:
        if spared.ours:
            gc.unfreeze()
