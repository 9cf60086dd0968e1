"""The largest batch from one symbolic capture is the one that captures of each batch give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zcompile
from tests.forecast.models import DEPTH, words
from tests.fx.graphs import Stack
from zcompile.forecasting import largest
from zcompile.forecasting.answer import Forecast
from zcompile.forecasting.largest import SYMBOLIC, TRIED
from zcompile.planner import Planner

BUDGET = 400_000

OPTIONS: dict[str, Any] = {"device_budget": BUDGET, "nvme_dir": "/raid", "compute": "eager"}


def stack() -> nn.Module:
    with torch.device("meta"):
        return Stack(32, DEPTH, 100)


def asked(batch: int, model: nn.Module | None = None, **changed: object) -> Forecast:
    options = {**OPTIONS, **changed}
    return zcompile.forecast(model or stack(), words(batch), options, "rtx4090")


def test_it_is_the_last_batch_that_fits() -> None:
    found = asked(3).largest_batch
    assert found.how == SYMBOLIC
    assert found.size is not None
    assert found.size > 3
    at, beyond = asked(found.size), asked(found.size + 1)
    assert at.fits
    assert not beyond.fits
    assert at.smallest_budget_bytes <= BUDGET < beyond.smallest_budget_bytes


class Fixed(nn.Module):
    """A model that does something else for every seventh batch: no symbol stands for all."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = Stack(16, 2, 20)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.stack(x) * float(int(x.shape[0]))
        return y if int(x.shape[0]) % 7 == 0 else y * 2


@pytest.mark.slow
def test_what_cannot_be_a_symbol_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest, "MAX_BATCH", 2)
    found = asked(3, Fixed().to("meta"), device_budget=4 << 20).largest_batch
    assert found.how == f"no limit up to 2, {TRIED}"


def test_there_may_be_none() -> None:
    assert asked(3, device_budget=20_000).largest_batch.size == 0


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 1000])
def test_the_search_stops_at_the_limit(limit: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    assert largest.last_that_fits(fits) == limit
    assert len(tried) <= 2 * max(1, limit).bit_length() + 1


def test_a_planner_knows_what_has_room() -> None:
    planner = Planner(zcompile.Options.read(OPTIONS))
    assert planner.has_room_for([])
