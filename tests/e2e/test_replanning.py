"""Plans that are replaced in the midst of training: no bit changes, nothing is compiled again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zcompile
from tests.fx.graphs import Stack
from zcompile.ir import Compute, Schedule, Tier
from zcompile.machines import load_machine, render_machine
from zcompile.measuring import Gaps
from zcompile.report.owner import session_of
from zcompile.session import Session

BUDGET = 2_500_000
ITERATIONS = 6

Between = Callable[[int, Session], None]


def machine(folder: Path, factor: float) -> Path:
    """Write a machine that computes ``factor`` times as fast as another, and copies slowly."""
    other = load_machine("cpu-epyc")
    flops = {
        kind: {dtype: rate * factor for dtype, rate in rates.items()}
        for kind, rates in other.flops_per_s.items()
    }
    links = {
        channel: replace(link, bandwidth_bytes_per_s=2e7, latency_s=0.0)
        for channel, link in other.links.items()
    }
    path = folder / "machine.json"
    path.write_text(render_machine(replace(other, flops_per_s=flops, links=links)))
    return path


def train(model: nn.Module, call: Any, between: Between | None = None) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen: list[Tensor] = []
    for number in range(ITERATIONS):
        loss = call(torch.arange(10).view(2, 5) + number).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.detach().clone())
        if between is not None:
            between(number, session_of(call))
    states = [
        state[kind] for state in optimizer.state.values() for kind in ("exp_avg", "exp_avg_sq")
    ]
    return [*seen, *(each.detach().clone() for each in [*model.parameters(), *states])]


def new() -> nn.Module:
    torch.manual_seed(0)
    return Stack(64, 6, 100)


def compiled(model: nn.Module, folder: Path, **options: Any) -> Any:
    torch.compiler.reset()
    given: dict[str, Any] = {"device_budget": BUDGET, "nvme_dir": folder / "swap", **options}
    return torch.compile(model, backend="zinf", options={"compute": "eager", **given})


def pretend(session: Session, seed: int) -> bool:
    """Tell the session that kernels took now no time, now much."""
    random = Random(seed)
    measured: dict[str, tuple[Schedule, tuple[Gaps, ...]]] = {}
    for each in session.planned():
        moves = sum(not isinstance(step, Compute) for step in each.schedule.steps)
        gaps = tuple(random.choice((1e-6, 1e-3, 3e-2)) for _ in range(moves + 1))
        measured[each.schedule.name] = each.schedule, (gaps,)
    return session.correct(measured)


@pytest.mark.parametrize("factor", [1e-6, 1.0])
def test_another_plan_in_between_changes_no_bit(factor: float, tmp_path: Path) -> None:
    model = new()
    want = train(model, model)
    model = new()
    call = compiled(model, tmp_path, target=machine(tmp_path, factor), replan_after=0)
    changed: list[bool] = []

    def between(number: int, session: Session) -> None:
        changed.append(pretend(session, number))
        for name, parameter in session.registry:
            assert session.rests_in(parameter) is session.planner.placement.homes[name]

    have = train(model, call, between)
    assert any(changed), "the plan was never replaced, so nothing was tried"
    assert all(map(torch.equal, want, have))
    stats = zcompile.stats(call)
    assert stats.total.peak_bytes[Tier.DEVICE] <= stats.planned_peak_bytes <= BUDGET


@pytest.mark.parametrize("compute", ["eager", "inductor"])
def test_the_first_iterations_are_measured(compute: str, tmp_path: Path) -> None:
    told: list[int] = []

    def between(number: int, session: Session) -> None:
        del number
        told.append(len(session.segments))

    results: list[list[Tensor]] = []
    for after in (0, 2):
        model = new()
        target = machine(tmp_path, 1e6)
        call = compiled(model, tmp_path, target=target, replan_after=after, compute=compute)
        results.append(train(model, call, between))
        stats = zcompile.stats(call)
        assert stats.total.peak_bytes[Tier.DEVICE] <= stats.planned_peak_bytes <= BUDGET
    assert all(map(torch.equal, *results))
    assert len(set(told)) == 1, "a segment was compiled again"
