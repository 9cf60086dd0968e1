"""An executor that notes how much time passes between the moves of a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from zcompile.ir import Tier
from zcompile.runtime.executor import Executor


class Stopwatch:
    """Hands every move on to ``inner``, and notes what passed since the move before.

    What passes between two moves is kernels; what the moves themselves take is not counted.
    """

    def __init__(self, inner: Executor, clock: Callable[[], float] = time.perf_counter) -> None:
        self._inner = inner
        self._clock = clock
        self._gaps: list[float] = []
        self._since = clock()

    def stop(self) -> Sequence[float]:
        """Return the gaps: one before each move, and what has passed since the last."""
        self._gap()
        return self._gaps

    def fetch(self, ticket: int, value: str, src: Tier, offset: int) -> None:
        self._gap()
        self._inner.fetch(ticket, value, src, offset)
        self._since = self._clock()

    def wait(self, ticket: int, value: str) -> Tensor:
        self._gap()
        near = self._inner.wait(ticket, value)
        self._since = self._clock()
        return near

    def offload(self, ticket: int, value: str, dst: Tier, tensor: Tensor) -> Tensor:
        self._gap()
        home = self._inner.offload(ticket, value, dst, tensor)
        self._since = self._clock()
        return home

    def release(self, value: str, after: int | None) -> None:
        self._gap()
        self._inner.release(value, after)
        self._since = self._clock()

    def close(self) -> None:
        self._inner.close()

    def _gap(self) -> None:
        self._gaps.append(self._clock() - self._since)
