"""How large the buffers for reading and writing files are: a share of the device budget."""

from __future__ import annotations

from zcompile.ir import PAGE_BYTES

FRACTION = 512
"""One I/O buffer takes at most 1/512 of the device budget: all of them less than 1 %."""

MAX_BLOCK_BYTES = 1 << 20

NUM_BUFFERS = 4
"""Two to read files and two to write them: see ``Transfers``."""


def block_bytes(budget: int | None) -> int:
    """Return the size of one I/O buffer under ``budget``, so that small budgets hold."""
    if budget is None:
        return MAX_BLOCK_BYTES
    pages = budget // FRACTION // PAGE_BYTES
    return min(max(pages, 1) * PAGE_BYTES, MAX_BLOCK_BYTES)


def budget_beside(nbytes: int) -> int:
    """Return the least budget that leaves ``nbytes`` beside the I/O buffers it implies."""
    budget = nbytes
    while budget - NUM_BUFFERS * block_bytes(budget) < nbytes:
        budget = nbytes + NUM_BUFFERS * block_bytes(budget)
    return budget
