"""How fast channels would have to be for most of the time to go to kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.forecast.models import words
from tests.fx.graphs import Stack
from zcompile.forecasting.answer import Timing
from zcompile.forecasting.forecast import forecast
from zcompile.ir import Channel
from zcompile.machines import load_machine

TIMING = Timing(
    seconds=3.0,
    exposed_s=1.0,
    kernel_s=2.0,
    busy_s={},
    bound_s=2.0,
    binding="",
    gap=0.5,
    moved_bytes={Channel.NVME_READ: 4_000, Channel.NVME_WRITE: 1_000},
)


def test_copies_take_as_long_as_the_kernels_and_the_rest_together() -> None:
    needed = TIMING.bandwidth_for(0.9)
    assert needed == pytest.approx({Channel.NVME_READ: 1_800.0, Channel.NVME_WRITE: 450.0})
    for channel, rate in needed.items():
        longest_s = TIMING.moved_bytes[channel] / rate
        assert TIMING.kernel_s / longest_s == pytest.approx(0.9)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 1.5])
def test_a_share_is_between_nothing_and_all(share: float) -> None:
    with pytest.raises(ValueError, match=f"share={share} must be between 0 and 1"):
        TIMING.bandwidth_for(share)


def test_without_kernels_nothing_is_needed() -> None:
    assert replace(TIMING, kernel_s=0.0).bandwidth_for(0.5) == {}


def test_a_forecast_tells() -> None:
    options = {"device_budget": 400_000, "nvme_dir": "/nvme", "compute": "eager"}
    found = forecast(Stack(32, 6, 100), words(), options, load_machine("cpu-epyc"))
    timing = found.timing
    assert timing is not None
    assert timing.moved_bytes[Channel.NVME_READ] > timing.moved_bytes[Channel.NVME_WRITE] > 0
    assert "for 90 % in kernels" in str(found)
    assert "nvme_read" in str(found).partition("for 90 %")[2]
