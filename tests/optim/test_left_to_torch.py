"""What torch's own step updates, on the homes: odd layouts, shared memory, refused flags."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW, Optimizer

from tests.optim.small_session import (
    SmallSession,
    all_on,
    gradients,
    mixed,
    parameters,
    session,
)
from tests.optim.twins import Make, Twins, check_bits, check_states
from zcompile.ir import Tier
from zcompile.optim.claims import claims_of
from zcompile.optim.rules import rule_of

NVME = all_on(Tier.NVME)

ADAMW: Make = partial(AdamW, lr=1e-2)
MOMENTUM: Make = partial(SGD, lr=1e-2, momentum=0.9)

# States that torch makes are in memory until they are moved: said once, and meant here.
pytestmark = pytest.mark.filterwarnings("ignore:.*outside the budget:UserWarning")


def claimed(own: SmallSession, optimizer: Optimizer) -> set[str]:
    rule = rule_of(optimizer)
    assert rule is not None
    return {claim.name for claim in claims_of(optimizer, rule, own)}


@pytest.mark.parametrize("make", [ADAMW, MOMENTUM])
def test_gradients_in_plain_memory_and_of_other_strides(tmp_path: Path, make: Make) -> None:
    with session(tmp_path, parameters(), mixed) as own:
        twins = Twins.of(own, parameters(), make)
        for iteration in range(3):
            given = gradients(own.parameters.values(), iteration)
            larger = torch.zeros(50_000)
            for params in (own.parameters, twins.plain_parameters):
                for param, gradient in zip(params.values(), given, strict=True):
                    param.grad = gradient.clone()
                view = larger[5000 : 5000 + params["long"].numel()]
                params["long"].grad = view.copy_(given[list(params).index("long")])
                turned = params["embed.weight"].grad
                assert turned is not None
                params["embed.weight"].grad = turned.t().contiguous().t()
            assert claimed(own, twins.ours) == own.parameters.keys() - {"embed.weight"}
            twins.ours.step()
            twins.plain.step()
            twins.check()


def tied() -> dict[str, Parameter]:
    whole = torch.linspace(-1, 1, 3000)
    return {
        "whole": Parameter(whole),
        "same": Parameter(whole),
        "part": Parameter(whole[1000:2000]),
        "apart": Parameter(torch.ones(500)),
    }


@pytest.mark.parametrize("make", [ADAMW, MOMENTUM])
def test_parameters_over_one_storage(tmp_path: Path, make: Make) -> None:
    with session(tmp_path, tied(), NVME) as own:
        assert own.parameters["whole"].data_ptr() == own.parameters["same"].data_ptr()
        twins = Twins.of(own, tied(), make)
        twins.give(gradients(twins.plain_parameters.values(), 0))
        assert claimed(own, twins.ours) == {"apart"}
        for iteration in range(3):
            twins.step(iteration)


def test_one_parameter_twice_in_a_group(tmp_path: Path) -> None:
    def make(params: list[Parameter]) -> Optimizer:
        with pytest.warns(UserWarning, match="duplicate parameters"):
            return SGD([params[0], params[0], params[1]], lr=0.1, momentum=0.9)

    def two() -> dict[str, Parameter]:
        return {"a": Parameter(torch.ones(2000)), "b": Parameter(torch.ones(2000))}

    with session(tmp_path, two(), NVME) as own:
        twins = Twins.of(own, two(), make)
        for iteration in range(3):
            twins.step(iteration)


FOREACH_NESTEROV: Make = partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True)
"""Writes the gradients, so it matters who shares them."""


@pytest.mark.parametrize(("make", "ours"), [(ADAMW, {"a", "b"}), (FOREACH_NESTEROV, set[str]())])
def test_one_gradient_for_two_parameters(tmp_path: Path, make: Make, ours: set[str]) -> None:
    def two() -> dict[str, Parameter]:
        return {"a": Parameter(torch.ones(2000)), "b": Parameter(torch.ones(2000))}

    with session(tmp_path, two(), NVME) as own:
        twins = Twins.of(own, two(), make)
        for params in (own.parameters, twins.plain_parameters):
            shared = torch.full((2000,), 0.5)
            for param in params.values():
                param.grad = shared
        assert claimed(own, twins.ours) == ours
        twins.ours.step()
        twins.plain.step()
        twins.check()


def sparse_gradient(param: Parameter) -> Tensor:
    embedding = nn.functional.embedding(torch.tensor([1, 3, 3]), param, sparse=True)
    (gradient,) = torch.autograd.grad(embedding.sum(), param)
    return gradient


def test_sparse_gradients(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), NVME) as own:
        twins = Twins.of(own, parameters(), partial(SGD, lr=0.1))
        twins.give(gradients(own.parameters.values(), 0))
        for params in (own.parameters, twins.plain_parameters):
            params["embed.weight"].grad = sparse_gradient(params["embed.weight"])
        assert claimed(own, twins.ours) == own.parameters.keys() - {"embed.weight"}
        twins.ours.step()
        twins.plain.step()
        for name, plain in twins.plain_parameters.items():
            check_bits(own.parameters[name], plain, name)


def unchanged_by(own: SmallSession, optimizer: Optimizer, error: str) -> None:
    before = {name: each.detach().clone() for name, each in own.parameters.items()}
    with pytest.raises((RuntimeError, AssertionError), match=error):
        optimizer.step()
    for name, each in own.parameters.items():
        check_bits(each, before[name], name)


def test_what_torch_refuses_changes_nothing(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), NVME) as own:
        params = own.parameters.values()
        own.give_gradients(gradients(params, 0))
        unchanged_by(own, AdamW(params, capturable=True), "capturable=True")
        foreach = AdamW(params, foreach=True)
        foreach.param_groups[0]["lr"] = torch.tensor(0.1)
        unchanged_by(own, foreach, "lr as a Tensor is not supported")
        own.parameters["embed.weight"].grad = sparse_gradient(own.parameters["embed.weight"])
        unchanged_by(own, AdamW(params), "does not support sparse gradients")


def complex_and_real() -> dict[str, Parameter]:
    random = torch.Generator().manual_seed(3)
    return {
        "complex": Parameter(torch.randn(700, dtype=torch.complex64, generator=random)),
        "real": Parameter(torch.randn(700, generator=random)),
    }


@pytest.mark.parametrize("make", [ADAMW, MOMENTUM])
def test_complex_parameters(tmp_path: Path, make: Make) -> None:
    with session(tmp_path, complex_and_real(), NVME) as own:
        twins = Twins.of(own, complex_and_real(), make)
        for iteration in range(3):
            twins.step(iteration)
        assert claimed(own, twins.ours) == {"real"}
        state = twins.ours.state[own.parameters["complex"]]
        assert set(own.tiers({k: v for k, v in state.items() if k != "step"}).values()) == {
            Tier.NVME
        }


@pytest.mark.parametrize("kind", [Adam, SGD])
def test_a_recorded_update(tmp_path: Path, kind: Callable[..., Optimizer]) -> None:
    def one() -> dict[str, Parameter]:
        return {"a": Parameter(torch.ones(2000))}

    def run(param: Tensor, optimizer_of: Callable[[list[Any]], Optimizer]) -> Tensor:
        moving = param.clone()
        moving.retain_grad()
        optimizer = optimizer_of([moving])
        moving.grad = torch.linspace(0.1, 1, 2000)
        optimizer.step()
        (back,) = torch.autograd.grad(moving.sum(), param)
        return back

    make = partial(kind, lr=0.1, differentiable=True)
    with session(tmp_path, one(), NVME) as own:
        # A parameter that autograd records is none of ours, and torch updates it as ever.
        plain = run(one()["a"], make)
        assert torch.equal(run(own.parameters["a"], make), plain)
        optimizer = make(own.parameters.values())
        own.give_gradients(gradients(own.parameters.values(), 0))
        assert claimed(own, optimizer) == set()


def test_what_cannot_be_cut_and_does_not_fit(tmp_path: Path) -> None:
    torch.set_num_threads(2)

    def odd() -> dict[str, Parameter]:
        return {"odd": Parameter(torch.ones(100_003, dtype=torch.bfloat16))}

    with session(tmp_path, odd(), NVME, window_bytes=100_000) as own:
        twins = Twins.of(own, odd(), MOMENTUM)
        twins.step(0)
        twins.step(1)
        assert not own.plans


def test_states_that_torch_did_not_make(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), NVME) as own:
        twins = Twins.of(own, parameters(), partial(AdamW, amsgrad=False))
        twins.step(0)
        for optimizer in (twins.ours, twins.plain):
            optimizer.param_groups[0]["amsgrad"] = True
            with pytest.raises(KeyError):
                optimizer.step()
            optimizer.param_groups[0]["amsgrad"] = False
        check_states(twins.ours, twins.plain)
