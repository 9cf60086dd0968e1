"""Keeps what the allocator retains out of the way of the plan.

Freed memory that the C library keeps for later is resident and in no plan.  Large blocks it
gives back at once (``libc.return_large_blocks_at_once``), except where it finds room for them
among older free memory: then they come out of, and go back to, a heap that only ever grows.
So while a plan with a budget runs, the process is compared with the plan after each move,
and where it has grown further away from it than it may, the heap's free pages are given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from zcompile.ir import Tier
from zcompile.runtime import libc
from zcompile.runtime.executor import Kernels, NativeUpdates, UpdatingExecutor
from zcompile.runtime.procfs import ProcessPages

MIN_SLACK_BYTES = 8 << 20
SLACK_FRACTION = 32
"""The process may grow away from its plan by 1/32 of the budget before it is looked after."""


def slack_bytes(device_budget: int) -> int:
    """Return how far the process may grow away from a plan for ``device_budget``."""
    return max(device_budget // SLACK_FRACTION, MIN_SLACK_BYTES)


class Retention:
    """Compares one invocation with ``planned``: the bytes held after each move of its schedule.

    What the process holds beyond the plan at the start is others' (Python's objects, another
    model), and so is any growth that giving free memory back does not undo.
    """

    def __init__(self, planned: Sequence[int], slack: int) -> None:
        self._planned = planned
        self._slack = slack
        self._at = 0
        self._pages = ProcessPages()
        libc.return_freed_memory()
        self._others = self._pages.anonymous_bytes() - (planned[0] if planned else 0)

    def moved(self) -> None:
        """Look after the next move; give free memory back if there is much of it."""
        planned = self._planned[self._at]
        self._at += 1
        limit = self._others + planned + self._slack
        if self._pages.anonymous_bytes() > limit:
            libc.return_freed_memory()
            self._others += max(0, self._pages.anonymous_bytes() - limit)

    def close(self) -> None:
        """End the comparison."""
        self._pages.close()


class RetainingLittle:
    """An executor that looks after retained memory once after every move."""

    def __init__(self, inner: UpdatingExecutor, retention: Retention) -> None:
        self._inner = inner
        self._retention = retention

    def fetch(self, ticket: int, value: str, src: Tier, offset: int) -> None:
        self._inner.fetch(ticket, value, src, offset)
        self._retention.moved()

    def wait(self, ticket: int, value: str) -> Tensor:
        near = self._inner.wait(ticket, value)
        self._retention.moved()
        return near

    def offload(self, ticket: int, value: str, dst: Tier, tensor: Tensor) -> Tensor:
        home = self._inner.offload(ticket, value, dst, tensor)
        self._retention.moved()
        return home

    def release(self, value: str, after: int | None) -> None:
        self._inner.release(value, after)
        self._retention.moved()

    def prepare(self) -> None:
        self._inner.prepare()

    def commit(self) -> object:
        return self._inner.commit()

    def put_off(self) -> Callable[[], object]:
        return self._inner.put_off()

    def stream(self, kernels: Kernels, native: NativeUpdates) -> bool:
        return self._inner.stream(kernels, native)  # what runs natively frees no memory

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._retention.close()
