"""The smallest budgets that work, and pins that are mistakes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.ir import Tier
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.fuzz import FuzzExecutor
from zcompile.runtime.machine import MakeExecutor

WIDTH = 256
STEPS = 3

EXECUTORS = [CpuExecutor, *(partial(FuzzExecutor, seed=seed) for seed in range(2))]


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())


def trained(model: nn.Module, call: Callable[[Tensor], Any]) -> list[Tensor]:
    """Return the losses of some steps, then the parameters."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(5)
    losses: list[Tensor] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = call(torch.randn(4, 8, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    return [*losses, *(each.detach().clone() for each in model.parameters())]


def budgeted(call: Any, backend: Backend, **options: Any) -> Any:
    return torch.compile(call, backend=backend, options={"compute": "eager", **options})


@pytest.mark.parametrize("make_executor", EXECUTORS, ids=["cpu", "fuzz 0", "fuzz 1"])
@pytest.mark.parametrize("percent", [100, 102])
def test_the_smallest_budget_trains_as_eager_does(
    make_executor: MakeExecutor, percent: int, swap_dir: Path
) -> None:
    plain = model()
    expected = trained(plain, plain)
    refusing = model()
    with pytest.raises(BudgetError) as error:
        budgeted(refusing, Backend(), device_budget=1000, nvme_dir=swap_dir)(torch.ones(4, 8))
    least = error.value.smallest_bytes
    weight_bytes = WIDTH * WIDTH * 4
    assert weight_bytes < least < 2 * weight_bytes, "weight and gradient are not held together"

    backend, ours = Backend(make_executor), model()
    budget = least * percent // 100
    for new, old in zip(
        trained(ours, budgeted(ours, backend, device_budget=budget, nvme_dir=swap_dir)),
        expected,
        strict=True,
    ):
        assert torch.equal(new, old)
    (session,) = backend.sessions(ours)
    assert any(each.schedule.vacates for each in session.planned())
    assert session.planned_peak_bytes <= budget
    assert session.total().peak_bytes[Tier.DEVICE] <= budget


def test_a_pin_that_matches_no_parameter_of_a_module_is_refused() -> None:
    compiled = budgeted(model(), Backend(), place={"layer.*": "device"})
    for _ in range(2):
        with pytest.raises(ValueError, match=r"place=.*'layer\.\*' matches no parameter; .*'0\.w"):
            compiled(torch.ones(4, 8))


def test_a_pin_to_a_parameter_that_no_graph_uses_is_fine() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Any:
            return self.used(x).relu()

    compiled = budgeted(Idle(), Backend(), place={"idle.*": "device"})
    assert compiled(torch.ones(4, 8)).shape == (4, 8)


def test_for_a_function_there_is_a_warning_at_the_end_of_the_first_iteration() -> None:
    ours = model()

    def function(x: Tensor) -> Any:
        return ours(x) * 1

    place = {"layer.*": "device", "*.weight": "device"}
    compiled = budgeted(function, Backend(), place=place)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    compiled(torch.ones(4, 8)).sum().backward()
    with pytest.warns(UserWarning, match=r"'layer\.\*' matches no parameter") as told:
        optimizer.step()
    assert len(told) == 1
    compiled(torch.ones(4, 8)).sum().backward()
    optimizer.step()
