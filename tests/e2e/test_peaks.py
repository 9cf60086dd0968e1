"""What the account finds is never more than what the plans say, and that is within the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from tests.e2e.jobs import compiled
from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.ir import Tier

WIDTH, BATCH = 64, 96

Make = Callable[[nn.Module], Optimizer]


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters())


def adamw_by_torch(model: nn.Module) -> Optimizer:
    """A learning rate in a tensor leaves the update to torch's kernels, with their temporaries."""
    return AdamW(model.parameters(), lr=torch.tensor(1e-3), foreach=False)


def momentum(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=1e-2, momentum=0.9)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        for _ in range(3)
    ]
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers)


def trained(make: Make, options: Mapping[str, object]) -> tuple[int, int]:
    """Train; return the planned peak of the device and the one of the account."""
    torch.compiler.reset()
    model, backend = make_model(), Backend()
    call = compiled(model, {"compute": "eager", **options}, backend)
    optimizer = make(model)
    for seed in range(3):
        batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(seed))
        loss: Tensor = call(batch).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    (session,) = backend.sessions(model)
    return session.planned_peak_bytes, session.total().peak_bytes[Tier.DEVICE]


def least(make: Make, options: Mapping[str, object]) -> int:
    with pytest.raises(BudgetError) as refused:
        trained(make, {**options, "device_budget": "8KiB"})
    return refused.value.smallest_bytes


def check_peaks(make: Make, place: Mapping[str, str], swap_dir: Path, **more: object) -> None:
    options = {"nvme_dir": swap_dir, "host_budget": "64MiB", "place": place, **more}
    smallest_bytes = least(make, options)
    for percent in (100, 104, 120, 150, 250, 500, 1000):
        budget = smallest_bytes * percent // 100
        planned, found = trained(make, {**options, "device_budget": budget})
        assert 0 < found <= planned <= budget, f"at {percent} % of the smallest budget"


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"activations": "nvme"},
        {"activations": "host"},
        {"optimizer": "device", "activations": "nvme"},
    ],
    ids=str,
)
def test_the_account_stays_within_the_plan(place: Mapping[str, str], swap_dir: Path) -> None:
    check_peaks(adamw, place, swap_dir)


@pytest.mark.parametrize("make", [adamw_by_torch, momentum])
@pytest.mark.parametrize(
    "place",
    [
        {},
        {"parameters": "nvme"},
        {"parameters": "device", "optimizer": "device", "gradients": "device"},
        {"0.*": "device", "activations": "nvme"},
        dict.fromkeys(("parameters", "gradients", "optimizer", "activations"), "nvme"),
    ],
    ids=str,
)
@pytest.mark.slow
def test_so_it_does_whoever_updates(make: Make, place: Mapping[str, str], swap_dir: Path) -> None:
    check_peaks(make, place, swap_dir)


@pytest.mark.parametrize("place", [{}, {"optimizer": "nvme"}], ids=str)
@pytest.mark.slow
def test_so_it_does_where_a_first_step_changes_the_placement(
    place: Mapping[str, str], swap_dir: Path
) -> None:
    more = {"host_budget": None, "target": "cpu-epyc", "early_update": "auto"}
    check_peaks(momentum, place, swap_dir, **more)
