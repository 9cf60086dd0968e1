"""`zcompile.stats` on a model that ran."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

import zcompile
from tests.report.models import BUDGET_BYTES, compiled, layers, train
from zcompile.ir import Tier
from zcompile.report.traffic import planned_traffic
from zcompile.runtime.ledger import Channel

STEPS = 3


@pytest.fixture
def model(tmp_path: Path) -> nn.Module:
    model = layers()
    train(compiled(model, tmp_path), list(model.parameters()), STEPS)
    return model


def test_there_is_an_entry_for_each_iteration(model: nn.Module) -> None:
    stats = zcompile.stats(model)
    assert len(stats.iterations) == STEPS
    for channel in Channel:
        by_iteration = [each.moved_bytes[channel] for each in stats.iterations]
        assert sum(by_iteration) <= stats.total.moved_bytes[channel]
        # The second iteration and the third do the same.
        assert by_iteration[1] == by_iteration[2]


def test_an_iteration_moves_at_least_what_its_plans_move(model: nn.Module) -> None:
    planned = sum(
        planned_traffic(report.schedule)[Channel.NVME_READ].moved_bytes
        for report in zcompile.schedules(model)
    )
    assert zcompile.stats(model).iterations[-1].moved_bytes[Channel.NVME_READ] >= planned > 0


def test_peaks_stay_within_the_budget(model: nn.Module) -> None:
    stats = zcompile.stats(model)
    assert stats.device_budget == BUDGET_BYTES
    assert stats.host_budget is None
    assert 0 < stats.planned_peak_bytes <= BUDGET_BYTES
    assert 0 < stats.total.peak_bytes[Tier.DEVICE] <= BUDGET_BYTES
    assert stats.total.peak_bytes[Tier.NVME] > 0


def test_it_prints_as_a_table(model: nn.Module) -> None:
    text = str(zcompile.stats(model))
    for part in ("3 iterations", "NVMe read", "exposed", "device peak (budget 2.0 MiB)"):
        assert part in text
    assert "host to device" not in text  # nothing went there
    assert "\x1b" not in text
    console = Console(record=True, width=120)
    console.print(zcompile.stats(model))
    assert "NVMe write" in console.export_text()


def test_the_buckets_of_ddp_are_shown_as_what_they_are(model: nn.Module) -> None:
    stats = zcompile.stats(model)
    assert stats.ddp_bucket_bytes == 0
    assert "DDP" not in str(stats)
    text = str(replace(stats, ddp_bucket_bytes=3 << 20))
    assert re.search(r"DDP's buckets, outside the budgets.*3\.0 MiB", text)


def test_before_any_optimizer_step_there_are_totals_alone(tmp_path: Path) -> None:
    model = layers()
    module = compiled(model, tmp_path)
    with pytest.raises(ValueError, match="has not run under this backend"):
        zcompile.stats(module)
    with torch.no_grad():
        module(torch.zeros(1, 256))
    stats = zcompile.stats(module)
    assert stats.iterations == ()
    text = str(stats)
    assert "no optimizer step so far" in text
    assert "last iteration" not in text
