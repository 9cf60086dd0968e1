"""What is set aside of the device budget to read and write files: shares of it."""

from __future__ import annotations

from dataclasses import dataclass

from zcompile.ir import PAGE_BYTES

FRACTION = 512
"""One I/O buffer takes at most 1/512 of the device budget: all of them less than 1 %."""

MAX_BLOCK_BYTES = 1 << 20

NUM_BUFFERS = 4
"""Two to read files and two to write them: see ``Transfers``."""

WINDOW_FRACTION = 8
"""The share of the budget that updates may take while backward runs, if they may."""

MAX_WINDOW_BYTES = 48 << 20
"""The most of it: three buckets that are large enough for the speed of a disk."""


def block_bytes(budget: int | None) -> int:
    """Return the size of one I/O buffer under ``budget``, so that small budgets hold."""
    if budget is None:
        return MAX_BLOCK_BYTES
    pages = budget // FRACTION // PAGE_BYTES
    return min(max(pages, 1) * PAGE_BYTES, MAX_BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class SetAside:
    """What is set aside of a device budget if there are files, and updates that begin early."""

    has_files: bool
    early_update: bool = False

    def nbytes(self, budget: int | None) -> int:
        """Return what all buffers take of ``budget``, and the window."""
        buffers = NUM_BUFFERS * block_bytes(budget) if self.has_files else 0
        return buffers + self.window_bytes(budget)

    def window_bytes(self, budget: int | None) -> int:
        """Return what updates may take under ``budget`` while backward still runs."""
        if not self.has_files or not self.early_update:
            return 0
        if budget is None:
            return MAX_WINDOW_BYTES
        return min(budget // WINDOW_FRACTION // PAGE_BYTES * PAGE_BYTES, MAX_WINDOW_BYTES)

    def budget_beside(self, nbytes: int) -> int:
        """Return the least budget that leaves ``nbytes`` beside what is set aside of it."""
        budget = nbytes
        while (set_aside := self.nbytes(budget)) + nbytes > budget:
            budget = nbytes + set_aside
        return budget
