"""A forecast is what the backend then plans: same places, same bytes, and nothing allocated."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adamax, AdamW, Optimizer

import zcompile
from tests.forecast.models import DEPTH, words
from tests.fx.graphs import Stack
from tests.machines.slow import slow
from tests.report.models import layers
from zcompile.forecasting.answer import Forecast
from zcompile.ir import Role, Tier
from zcompile.machines import load_machine
from zcompile.report.owner import session_of
from zcompile.runtime.procfs import memory_use

Options = dict[str, Any]


def stack_of(depth: int) -> nn.Module:
    return Stack(32, depth, 100)


def momentum(parameters: Any) -> Optimizer:
    return SGD(parameters, lr=0.1, momentum=0.9)


def trained(
    model: nn.Module,
    x: Any,
    options: Options,
    make: Callable[[Any], Optimizer],
    num_backwards: int = 1,
) -> Any:
    """Train ``model`` for two steps under the backend; return its session."""
    compiled = torch.compile(model, backend="zinf", options=options)
    optimizer = make(model.parameters())
    for _ in range(2):
        for _ in range(num_backwards):
            compiled(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return session_of(compiled)


@dataclass(frozen=True)
class Case:
    """How a model is trained, besides within 400 kB."""

    make: Callable[[Any], Optimizer] = AdamW
    dtype: torch.dtype = torch.float32
    num_backwards: int = 1
    options: Mapping[str, object] = field(default_factory=dict[str, object])


CASES = {
    "accumulation": Case(num_backwards=2),
    "masters": Case(dtype=torch.bfloat16, options={"master_weights": True}),
    "momentum": Case(make=momentum),
    "host": Case(options={"host_budget": 600_000, "place": {"gradients": "host"}}),
    "timed": Case(options={"target": "cpu-epyc"}),
    "inductor": Case(options={"compute": "inductor"}),
    "inductor-masters": Case(
        dtype=torch.bfloat16, options={"compute": "inductor", "master_weights": True}
    ),
}

ALWAYS = ("accumulation", "masters")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(each, id=name, marks=() if name in ALWAYS else pytest.mark.slow)
        for name, each in CASES.items()
    ],
)
def test_it_is_what_the_backend_plans(case: Case, tmp_path: Path) -> None:
    options: Options = {"device_budget": 400_000, "nvme_dir": str(tmp_path), "compute": "eager"}
    options |= case.options
    with torch.device("meta"):
        model = stack_of(DEPTH).to(case.dtype)
    found = zcompile.forecast(model, words(), options, "rtx4090", optimizer=case.make)
    assert options["compute"] == "inductor" or "stand for all" in found.captured
    session = trained(
        stack_of(DEPTH).to(case.dtype),
        torch.zeros(3, 5, dtype=torch.int64),
        options,
        case.make,
        case.num_backwards,
    )
    assert found.placement == session.planner.placement.homes
    assert found.peak_bytes[Tier.DEVICE] == session.planned_peak_bytes
    assert found.smallest_budget_bytes <= found.peak_bytes[Tier.DEVICE] <= 400_000


def test_the_smallest_budget_is_the_backends(tmp_path: Path) -> None:
    options = {"device_budget": 20_000, "nvme_dir": str(tmp_path), "compute": "eager"}
    with torch.device("meta"):
        model = stack_of(DEPTH)
    found = zcompile.forecast(model, words(), options, "rtx4090")
    # torch says of which types the values of options are; ours are of others too.
    compiled: Any = torch.compile(stack_of(DEPTH), backend="zinf", options=options)  # type: ignore[arg-type]
    with pytest.raises(zcompile.BudgetError) as error:
        compiled(torch.zeros(3, 5, dtype=torch.int64))
    assert not found.fits
    assert found.smallest_budget_bytes == error.value.smallest_bytes
    assert found.why_not.splitlines()[0] == str(error.value).splitlines()[0]
    assert (found.timing, found.peak_bytes, found.holdings) == (None, {}, ())


@pytest.mark.parametrize("make", [AdamW, momentum])
def test_without_another_tier_the_smallest_budget_holds_the_states(
    make: Callable[[Any], Optimizer],
) -> None:
    with torch.device("meta"):
        model = stack_of(DEPTH)
    options: Options = {"device_budget": 20_000, "compute": "eager"}
    found = zcompile.forecast(model, words(), options, "rtx4090", optimizer=make)
    compiled: Any = torch.compile(stack_of(DEPTH), backend="zinf", options=options)
    optimizer = make(compiled.parameters())
    with pytest.raises(zcompile.BudgetError) as error:
        compiled(torch.zeros(3, 5, dtype=torch.int64))
    del optimizer
    assert found.why_not.splitlines()[0] == str(error.value).splitlines()[0]
    assert found.smallest_budget_bytes == error.value.smallest_bytes
    options["device_budget"] = error.value.smallest_bytes
    assert zcompile.forecast(model, words(), options, "rtx4090", optimizer=make).fits
    trained(stack_of(DEPTH), torch.zeros(3, 5, dtype=torch.int64), options, make)


def test_a_model_larger_than_any_memory_takes_none() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(1 << 13, 1 << 13, bias=False) for _ in range(24)))
        x = torch.zeros(2, 1 << 13)
    machine = load_machine("h100")
    machine = replace(machine, capacities={**machine.capacities, Tier.NVME: 8 << 30})
    zcompile.forecast(layers().to("meta"), torch.zeros(2, 256, device="meta"))
    before = memory_use().resident_bytes
    found = zcompile.forecast(model, x, {"device_budget": "1GB", "nvme_dir": "/raid"}, machine)
    assert memory_use().resident_bytes - before < 64 << 20
    assert found.num_parameters == 24 << 26
    assert not found.fits
    assert "go to nvme, and h100 has" in found.why_not
    assert found.bytes_at_rest(Tier.NVME) > 8 << 30


def test_an_update_is_launched_once_for_a_bucket() -> None:
    with torch.device("meta"):
        layers = (nn.Linear(4096, 4096, bias=False) for _ in range(24))
        model, x = nn.Sequential(*layers).bfloat16(), torch.zeros(64, 4096, dtype=torch.bfloat16)
    found = zcompile.forecast(model, x, {"compute": "eager"}, "h100")
    assert found.timing is not None
    assert found.timing.bound_s <= found.timing.kernel_s < 1.05 * found.timing.bound_s


@pytest.fixture(scope="module")
def ample() -> Forecast:
    torch.compiler.reset()
    with torch.device("meta"):
        model = stack_of(DEPTH)
    return zcompile.forecast(model, words(), None, "a100")


def test_without_budgets_those_of_the_machine_count(ample: Forecast) -> None:
    assert ample.fits
    assert ample.budgets[Tier.DEVICE] == 80_000_000_000
    assert {each.tier for each in ample.holdings} == {Tier.DEVICE}
    roles = {each.role: each.nbytes for each in ample.holdings}
    assert roles[Role.STATE] == 2 * roles[Role.PARAMETER] == 2 * roles[Role.GRADIENT]


def test_time_is_simulated_and_bounded(ample: Forecast) -> None:
    timing = ample.timing
    assert timing is not None
    assert timing.bound_s <= timing.seconds
    assert timing.seconds == pytest.approx(timing.kernel_s + timing.exposed_s)
    assert timing.tokens_per_s == pytest.approx(3 * 5 / timing.seconds)
    assert timing.binding.startswith("kernels: ")


def test_it_goes_into_json_whole(ample: Forecast) -> None:
    data = json.loads(json.dumps(ample.as_dict()))
    assert data["placement"] == dict(ample.placement)
    assert data["timing"]["bound_s"] == ample.timing.bound_s  # type: ignore[union-attr]  # it fits


def test_it_prints_within_eighty_columns(ample: Forecast) -> None:
    text = str(ample)
    assert max(map(len, text.splitlines())) <= 80
    for told in ("Stack on a100", "states at rest", "smallest device_budget", "tokens/s"):
        assert told in text


def test_what_is_asked_for_must_be_there() -> None:
    model, x = layers().to("meta"), torch.zeros(2, 256, device="meta")
    with pytest.raises(ValueError, match="device_budget=1000000000000: a100 has"):
        zcompile.forecast(model, x, {"device_budget": "1TB"}, "a100")
    with pytest.raises(ValueError, match=r"optimizer='adamww': did you mean 'adamw'"):
        zcompile.forecast(model, x, optimizer="adamww")
    with pytest.raises(ValueError, match="optimizer=Adamax: its update runs as it is"):
        zcompile.forecast(model, x, optimizer=Adamax)
    with pytest.raises(ValueError, match=r"place=.*'nothing' matches no parameter"):
        zcompile.forecast(model, x, {"place": {"nothing": "device"}})


@pytest.mark.slow
def test_nothing_is_left_of_it_in_the_compiler(tmp_path: Path) -> None:
    """The user's model is compiled afterwards as often as Dynamo allows."""
    for _ in range(10):
        zcompile.forecast(layers().to("meta"), torch.zeros(2, 256, device="meta"), whole=True)
    options = {"device_budget": 2 << 20, "nvme_dir": str(tmp_path), "compute": "eager"}
    session = trained(layers(), torch.ones(2, 256), options, AdamW)
    assert len(session.planned()) == 2


def test_early_updates_are_forecast_beside_backward() -> None:
    kinds = dict.fromkeys(("parameters", "gradients", "optimizer"), "nvme")

    def seconds(*, early: bool) -> float:
        options = {
            "device_budget": 600_000,
            "nvme_dir": "swap",
            "compute": "eager",
            "place": kinds,
            "early_update": early,
        }
        found = zcompile.forecast(stack_of(DEPTH), words(), options, slow(1e3))
        assert found.timing is not None
        assert found.timing.seconds >= found.timing.kernel_s
        assert found.timing.seconds >= found.timing.bound_s
        return found.timing.seconds

    assert seconds(early=True) < seconds(early=False)


@pytest.mark.parametrize("nvme_dir", [None, "/raid"])
def test_a_plan_that_makes_activations_again_has_a_time(nvme_dir: str | None) -> None:
    with torch.device("meta"):
        model = Stack(32, DEPTH, 100)
    options = {"compute": "eager", "nvme_dir": nvme_dir, "recompute": "always"}
    refused = zcompile.forecast(model, words(64), {**options, "device_budget": "64KiB"}, "rtx4090")
    least = refused.smallest_budget_bytes
    found = zcompile.forecast(model, words(64), {**options, "device_budget": least}, "rtx4090")
    assert found.fits
    assert found.made_again_bytes > 0
    assert found.timing is not None
    assert found.timing.seconds >= found.timing.bound_s > 0
