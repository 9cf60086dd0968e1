"""Let Python's garbage collector run less often while a graph is compiled, or a plan is chosen.

A graph of thousands of operations is hundreds of thousands of objects, and tracing, splitting
and cutting it make many more.  The collector goes over all of them again and again and finds
next to nothing: for a deep model that was a quarter of the time after tracing.  While a
compilation runs it waits for more new objects before it looks.  So it does while plans are made
and compared: those of 100,000 kernels are millions of steps, and took 1.4 times as long with it.

Setting objects aside (``gc.freeze``) would spare it more, and did: but what comes back from there
counts as old, and cycles that a compilation leaves behind would then outlive the collection of
young objects that Dynamo asks for at its end.  They hold parameters.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

NEW_OBJECTS = 100_000
"""How many more objects than have gone must have come before the collector looks; usually 700."""


@contextmanager
def sparing_the_collector() -> Generator[None, None, None]:
    """Within, the collector looks only after every `NEW_OBJECTS`.

    Where it waits for as many already, for an outer compilation, for one in another thread or
    because the user wants it so (0: never), nothing is done.

    >>> with sparing_the_collector():
    ...     gc.get_threshold()[0]
    100000
    """
    before = gc.get_threshold()
    if before[0] == 0 or before[0] >= NEW_OBJECTS:
        yield
        return
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
