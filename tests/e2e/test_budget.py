"""The budget as a promise, honest about every byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.e2e.checks import (
    check_accounts_agree,
    check_disk_traffic,
    check_moves_half,
    check_resident_bytes,
)
from tests.e2e.jobs import JOBS, compiled
from tests.e2e.looking import Observed, looking
from tests.e2e.measured import Figures, measure
from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.ir import PAGE_BYTES, Tier
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.extents import Lease
from zcompile.runtime.procfs import resident_bytes_of

MIB = 1 << 20

DEPTH = 5
"""67 million parameters: 1026 MiB with gradients and the states of Adam."""

DEVICE_BUDGET = 256 * MIB
HOST_BUDGET = 160 * MIB


def test_a_quarter_of_the_states_is_enough() -> None:
    check_all(measure(DEPTH, {"compute": "eager", "device_budget": DEVICE_BUDGET}))


@pytest.mark.slow
def test_a_quarter_is_enough_for_inductor() -> None:
    check_all(measure(DEPTH, {"compute": "inductor", "device_budget": DEVICE_BUDGET}))


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["eager", "inductor"])
def test_the_host_tier_keeps_its_own_budget(compute: str) -> None:
    budgets = {"device_budget": DEVICE_BUDGET, "host_budget": HOST_BUDGET}
    figures = measure(DEPTH, {"compute": compute, **budgets})
    check_resident_bytes(figures, DEVICE_BUDGET + HOST_BUDGET)
    check_disk_traffic(figures)
    for each in figures.steady:
        assert HOST_BUDGET / 2 < each.ledger_peak_bytes[Tier.HOST] <= HOST_BUDGET


def check_all(figures: Figures) -> None:
    assert 60e6 < figures.parameter_bytes / 4 < 100e6
    assert 4 * figures.parameter_bytes >= 4 * DEVICE_BUDGET
    check_moves_half(figures)
    check_resident_bytes(figures, DEVICE_BUDGET)
    check_accounts_agree(figures, DEVICE_BUDGET)
    check_disk_traffic(figures)


def train_observed(backend: Any, swap_dir: Path, each_time: Callable[[], None]) -> None:
    """Train a model that looks around while it runs, with all its states in the file."""
    model = Observed()
    at_home = {"parameters": "nvme", "gradients": "nvme", "optimizer": "nvme"}
    given = {"compute": "eager", "device_budget": 4 * MIB, "nvme_dir": swap_dir, "place": at_home}
    call = compiled(model, given, backend)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with looking(each_time):
            loss: Any = call(torch.ones(2, 256)).square().mean()
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def resident_home_bytes(swap_dir: Path) -> int:
    return sum(resident_bytes_of(each) for each in swap_dir.rglob("extents.bin"))


def test_no_page_of_a_home_is_resident_while_a_graph_runs(swap_dir: Path) -> None:
    seen: list[int] = []
    train_observed(Backend(), swap_dir, lambda: seen.append(resident_home_bytes(swap_dir)))
    assert len(seen) == 3 * (7 + 6)  # the input has no gradient
    assert set(seen) == {0}


def test_no_page_of_a_home_is_resident_while_an_update_runs(swap_dir: Path) -> None:
    seen: list[int] = []

    class Watching(CpuExecutor):
        def commit(self) -> tuple[Lease, ...]:
            seen.append(resident_home_bytes(swap_dir))
            return super().commit()

    train_observed(Backend(Watching), swap_dir, lambda: None)
    assert seen == [0, 0, 0]


@pytest.mark.parametrize("name", ["lm-adamw", "conv-sgd", "recurrent-fused"])
def test_a_hopeless_budget_is_refused_before_anything_happens(name: str, swap_dir: Path) -> None:
    job = JOBS[name]
    model = job.model()
    memory = {name: each.data_ptr() for name, each in model.named_parameters()}
    before = {name: each.clone() for name, each in model.state_dict().items()}
    backend = Backend()
    tiny = {"compute": "eager", "device_budget": PAGE_BYTES, "nvme_dir": swap_dir}
    with pytest.raises(BudgetError) as caught:
        job.loss(compiled(model, tiny, backend), torch.Generator())
    error = caught.value
    assert (error.option, error.budget_bytes) == ("device_budget", PAGE_BYTES)
    assert error.step
    assert error.values
    assert str(error.smallest_bytes) in str(error)
    assert list(swap_dir.iterdir()) == []
    assert {name: each.data_ptr() for name, each in model.named_parameters()} == memory
    # Batch norm would have counted the batch.
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    # The same model, in the same process, with what the error asks for.
    budget = int(1.02 * error.smallest_bytes)
    call = compiled(model, tiny | {"device_budget": budget}, backend)
    optimizer = job.make_optimizer(model)
    for _ in range(3):
        job.loss(call, torch.Generator()).backward()
        optimizer.step()
        optimizer.zero_grad()
    session = backend.sessions(model)[-1]
    peak = session.total().peak_bytes[Tier.DEVICE]
    assert 0 < peak <= session.planned_peak_bytes <= budget


@pytest.mark.parametrize("name", ["lm-adamw", "conv-sgd"])
def test_the_smallest_budget_is_the_smallest(name: str, swap_dir: Path) -> None:
    job = JOBS[name]

    def refusal(nbytes: int) -> BudgetError | None:
        torch.compiler.reset()
        given = {"compute": "eager", "device_budget": nbytes, "nvme_dir": swap_dir}
        try:
            job.loss(compiled(job.model(), given, Backend()), torch.Generator())
        except BudgetError as error:
            return error
        return None

    first = refusal(PAGE_BYTES)
    assert first is not None
    assert refusal(first.smallest_bytes) is None
    second = refusal(first.smallest_bytes - 1)
    assert second is not None
    assert second.smallest_bytes == first.smallest_bytes


def test_a_kernel_does_not_run_when_the_backward_has_no_room(swap_dir: Path) -> None:
    seen: list[int] = []

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.observed = Observed(64, 1)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.observed(x)
            return result

    model = Wide()
    x = torch.ones(512, 64)

    def call(nbytes: int, *, backward: bool) -> None:
        torch.compiler.reset()
        given = {
            "compute": "eager",
            "device_budget": nbytes,
            "nvme_dir": swap_dir,
            "place": {"activations": "device"},
        }
        with torch.set_grad_enabled(backward):
            compiled(model, given, Backend())(x)

    with pytest.raises(BudgetError) as forward_only:
        call(PAGE_BYTES, backward=False)
    enough_for_forward = forward_only.value.smallest_bytes
    call(enough_for_forward, backward=False)
    with looking(lambda: seen.append(1)), pytest.raises(BudgetError) as both:
        call(enough_for_forward, backward=True)
    assert seen == []
    assert both.value.smallest_bytes > enough_for_forward
    assert "backward" in both.value.step
