"""Backward makes saved values again, by forward's own segments: same bits, fewer bytes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.e2e.again import EAGER, FUZZ, check_same_bits, dropped, least_budget
from tests.e2e.jobs import compiled
from tests.e2e.sides import copies
from tests.e2e.test_activations import (
    BATCH,
    WIDTH,
    alike,
    batch,
    made,
    session_of,
    trained,
)
from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.ir import Compute, Role, Tier, name_in_forward, parse, render
from zcompile.passes.recompute import again_steps
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.machine import MakeExecutor


@pytest.mark.parametrize(
    ("make_executor", "percent"),
    [
        (CpuExecutor, 100),
        *(pytest.param(each, 100, marks=pytest.mark.slow) for each in FUZZ),
        *(pytest.param(CpuExecutor, percent, marks=pytest.mark.slow) for percent in (105, 150)),
    ],
)
def test_without_a_disk_a_smaller_budget_holds(make_executor: MakeExecutor, percent: int) -> None:
    make = partial(made, drop=0.0)
    kept = least_budget(make, compute="eager", recompute="never")
    least = least_budget(make, compute="eager")
    assert least < 0.6 * kept
    budget = least * percent // 100
    options = {"compute": "eager", "device_budget": budget}
    session = check_same_bits(make, options, make_executor=make_executor)
    assert dropped(session)
    assert session.total().peak_bytes[Tier.DEVICE] <= budget


@pytest.mark.parametrize(
    "percent", [130, *(pytest.param(each, marks=pytest.mark.slow) for each in (100, 200))]
)
def test_some_move_and_some_are_made_again(percent: int, swap_dir: Path) -> None:
    make = partial(made, drop=0.0)
    given = {"compute": "eager", "nvme_dir": swap_dir}
    budget = least_budget(make, **given) * percent // 100
    session = check_same_bits(make, {**given, "device_budget": budget})
    assert session.total().peak_bytes[Tier.DEVICE] <= budget
    assert bool(dropped(session)) == (percent > 100), "moving everything away takes the least room"


def test_the_smallest_budget_is_the_smallest() -> None:
    make = partial(made, drop=0.0)
    least = least_budget(make, compute="eager")
    model = make()
    call = compiled(model, {"compute": "eager", "device_budget": least - 1})
    with pytest.raises(BudgetError) as refused:
        trained(model, call, (BATCH,))
    assert refused.value.smallest_bytes == least


def test_inductor_runs_its_own_kernels_again(swap_dir: Path) -> None:
    make = partial(made, drop=0.0)
    seen: list[list[Tensor]] = []
    for way in ("never", "always"):
        torch.compiler.reset()
        backend, model = Backend(), make()
        options = {"device_budget": "64MiB", "nvme_dir": swap_dir, "recompute": way}
        seen.append(trained(model, compiled(model, options, backend), (BATCH,) * 2))
        assert bool(dropped(session_of(backend, model))) == (way == "always")
    assert alike(*seen)


def test_without_any_budget_too() -> None:
    session = check_same_bits(partial(made, drop=0.0), EAGER)
    assert dropped(session)
    backward = session.planned()[1]
    text = render(backward.schedule)
    assert "recompute forward." in text
    assert parse(text) == backward.schedule
    assert "addmm" in backward.module.code, "forward's own operations stand in backward"


def test_dropout_is_drawn_once() -> None:
    session = check_same_bits(made, EAGER)
    forward, backward = session.planned()
    kernels = [step for step in forward.plan.captured.steps if isinstance(step, Compute)]
    again = {name_in_forward(step.kernel) for step in again_steps(backward.schedule)}
    assert again
    assert again <= {step.kernel for step in kernels if step.repeats}
    assert not all(step.repeats for step in kernels)


def test_shapes_change_from_call_to_call() -> None:
    sizes = (64, 512, 96, 512, 700)
    assert dropped(check_same_bits(partial(made, drop=0.0), EAGER, sizes, dynamic=True))


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_beside_checkpoints_inside(drop: float) -> None:
    check_same_bits(partial(made, drop=drop, recompute=True), EAGER)


def test_a_larger_batch_is_planned_for_both_graphs_at_once() -> None:
    """Otherwise forward would keep what backward, planned later, has no room for."""
    make = partial(made, drop=0.0)
    budget = 2 * least_budget(make, compute="eager")
    options = {"compute": "eager", "device_budget": budget}
    session = check_same_bits(make, options, (BATCH, 2 * BATCH, 2 * BATCH), dynamic=True)
    assert dropped(session)
    assert session.total().peak_bytes[Tier.DEVICE] <= budget


@pytest.mark.filterwarnings("ignore:.*forward ran by an earlier plan:UserWarning")
def test_plans_change_between_forward_and_backward() -> None:
    """Backward makes again what the forward of then has dropped, and nothing else."""
    make = partial(made, drop=0.0)
    budget = least_budget(make, compute="eager") * 11 // 10
    plain, model, backend = make(), make(), Backend()
    call = compiled(model, {"compute": "eager", "device_budget": budget}, backend)
    loss = call(batch(0)).square().mean()
    session = session_of(backend, model)
    before = dropped(session)
    session.expect_states(["exp_avg", "exp_avg_sq", "max_exp_avg_sq"])
    after = {name for plan in session.planner.plans() for name in plan.dropped}
    assert set() < before < after
    loss.backward()
    plain(batch(0)).square().mean().backward()
    assert alike(copies(model), copies(plain))
    call(batch(1)).square().mean().backward()
    plain(batch(1)).square().mean().backward()
    assert alike(copies(model), copies(plain))
    assert dropped(session) == after


@pytest.mark.parametrize("way", ["never", "always"])
def test_autocast_around_backward_only(way: str) -> None:
    """A graph holds its casts: it runs as it was traced, and so do forward's segments in it."""

    def run(model: nn.Module, call: Callable[[Tensor], Any], *, around: bool) -> list[Tensor]:
        loss = call(batch(0)[None]).square().mean()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around):
            loss.backward()
            assert torch.is_autocast_enabled("cpu") == around
        return copies(model)

    layers = [nn.Linear(WIDTH, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64)]
    plain = nn.Sequential(*layers)
    model = copy.deepcopy(plain)
    got = run(model, compiled(model, {**EAGER, "recompute": way}), around=True)
    assert alike(got, run(plain, plain, around=False))


def test_mixed_precision() -> None:
    def run(model: nn.Module, call: Callable[[Tensor], Any]) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = call(batch(0)).square().mean()
        loss.backward()
        return copies(model, loss)

    plain, model, backend = made(drop=0.0), made(drop=0.0), Backend()
    want = run(plain, plain)
    assert alike(run(model, compiled(model, EAGER, backend)), want)
    assert dropped(session_of(backend, model))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 4 * WIDTH)
        self.layers = nn.ModuleList(nn.Linear(4 * WIDTH, 4 * WIDTH) for _ in range(3))
        self.head = nn.Linear(4 * WIDTH, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) * torch.sigmoid(x)
        logits: Tensor = self.head(x)
        return logits


def test_tied_weights_and_accumulation(swap_dir: Path) -> None:
    def run(model: nn.Module, call: Callable[[Tensor], Any]) -> list[Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        seen: list[Tensor] = []
        for seed in range(4):
            words = torch.arange(seed, seed + 256).view(2, 128) % 64
            call(words).square().mean().backward()
            if seed % 2:
                optimizer.step()
                optimizer.zero_grad()
            seen += copies(model)
        return seen

    def tied() -> nn.Module:
        torch.manual_seed(0)
        return Tied()

    plain = tied()
    want = run(plain, plain)
    for place in ({}, {"parameters": "nvme", "gradients": "nvme", "optimizer": "nvme"}):
        torch.compiler.reset()
        backend, model = Backend(), tied()
        options = {**EAGER, "device_budget": "64MiB", "nvme_dir": swap_dir, "place": place}
        assert alike(run(model, compiled(model, options, backend)), want)
        assert dropped(session_of(backend, model))


def test_pinned_activations_are_kept() -> None:
    backend, model = Backend(), made(drop=0.0)
    options = {**EAGER, "place": {"activations": "device"}}
    compiled(model, options, backend)(batch(0)).square().mean().backward()
    assert not dropped(session_of(backend, model))


def test_batch_norm_changes_its_buffers_once() -> None:
    def bn() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 64)]
        return nn.Sequential(*layers, nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, WIDTH))

    def run(model: nn.Module, call: Callable[[Tensor], Any]) -> list[Tensor]:
        seen = trained(model, call, (BATCH,) * 2)
        return [*seen, *(each.clone() for each in model.buffers())]

    plain, model, backend = bn(), bn(), Backend()
    want = run(plain, plain)
    torch.compiler.reset()
    assert alike(run(model, compiled(model, EAGER, backend)), want)


def test_a_plan_says_what_is_made_again() -> None:
    backend, model = Backend(), made(drop=0.0)
    compiled(model, EAGER, backend)(batch(0)).square().mean().backward()
    session = session_of(backend, model)
    forward, backward = (planned.plan for planned in session.planned())
    assert forward.dropped == backward.dropped
    values = {each.name: each for each in backward.schedule.values}
    assert all(values[name].role is Role.SAVED for name in backward.dropped)
    reasons = {e.value: e.reason for e in session.planner.placement.verdicts}
    assert all("backward makes it again" in reasons[name] for name in backward.dropped)


def test_with_a_target_it_is_chosen_by_time(swap_dir: Path) -> None:
    options = {
        "compute": "eager",
        "device_budget": "600KiB",
        "nvme_dir": swap_dir,
        "target": "cpu-epyc",
    }
    session = check_same_bits(partial(made, drop=0.0), options)
    assert dropped(session)
    assert session.planner.seconds is not None
    assert session.total().peak_bytes[Tier.DEVICE] <= 600 << 10
