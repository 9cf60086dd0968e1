"""What passes between moves is measured; what they take themselves is not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain

import pytest
import torch
from torch import Tensor

from zcompile.ir import Tier
from zcompile.runtime.stopwatch import Stopwatch


class Noting:
    """An executor that does nothing but tell what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def fetch(self, ticket: int, value: str, src: Tier, offset: int) -> None:
        self.asked.append(("fetch", ticket, value, src, offset))

    def wait(self, ticket: int, value: str) -> Tensor:
        self.asked.append(("wait", ticket, value))
        return torch.ones(1)

    def offload(self, ticket: int, value: str, dst: Tier, tensor: Tensor) -> Tensor:
        self.asked.append(("offload", ticket, value, dst))
        return tensor + 1

    def release(self, value: str, after: int | None) -> None:
        self.asked.append(("release", value, after))

    def close(self) -> None:
        self.asked.append(("close",))


def test_gaps_lie_between_the_moves() -> None:
    # The clock is read at the start, before and after each of four moves, and at the end.
    spent: Iterator[float] = chain([0.0], [1.0, 100.0, 2.0, 100.0, 3.0, 100.0, 4.0, 100.0], [5.0])
    ticks = accumulate(spent)
    inner = Noting()
    watch = Stopwatch(inner, lambda: next(ticks))
    watch.fetch(1, "w", Tier.NVME, 64)
    near = watch.wait(1, "w")
    home = watch.offload(2, "g", Tier.HOST, near)
    watch.release("w", 2)
    assert watch.stop() == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0])
    watch.close()
    assert home.item() == 2.0
    assert inner.asked == [
        ("fetch", 1, "w", Tier.NVME, 64),
        ("wait", 1, "w"),
        ("offload", 2, "g", Tier.HOST),
        ("release", "w", 2),
        ("close",),
    ]
