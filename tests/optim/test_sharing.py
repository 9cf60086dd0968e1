"""Several optimizers over one session, several sessions under one optimizer."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import torch
from torch.nn import Parameter
from torch.optim import SGD, AdamW

from tests.optim.small_session import all_on, gradients, mixed, parameters, session
from tests.optim.twins import Twins, check_bits, check_states
from zcompile.ir import Tier

NVME = all_on(Tier.NVME)


def test_two_optimizers_over_the_same_parameters(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), NVME) as own:
        twins = Twins.of(own, parameters(), partial(AdamW, lr=1e-2))
        second = [
            SGD(each.values(), lr=0.1, momentum=0.9)
            for each in (own.parameters, twins.plain_parameters)
        ]
        for iteration in range(3):
            twins.step(iteration)
            for optimizer in second:
                optimizer.step()  # with the gradients that the first one left
            twins.check()
            check_states(*second)


def test_two_optimizers_over_different_parameters(tmp_path: Path) -> None:
    plain = parameters()
    with session(tmp_path, parameters(), NVME) as own:
        optimizers = [
            (AdamW(params[:3], lr=1e-2), SGD(params[3:], lr=0.1, momentum=0.9))
            for params in (list(own.parameters.values()), list(plain.values()))
        ]
        for iteration in range(3):
            given = gradients(plain.values(), iteration)
            own.give_gradients(given)
            for param, gradient in zip(plain.values(), given, strict=True):
                param.grad = gradient
            for pair in optimizers:
                for optimizer in pair:
                    optimizer.step()
        for ours, theirs in zip(*optimizers, strict=True):
            check_states(ours, theirs)
        for name, each in plain.items():
            check_bits(own.parameters[name], each, name)


def test_two_sessions_and_nobody_under_one_optimizer(tmp_path: Path) -> None:
    plain = [*parameters().values(), *parameters().values(), Parameter(torch.ones(40, 40))]
    with (
        session(tmp_path / "one", parameters(), NVME) as one,
        session(tmp_path / "two", parameters(), mixed) as two,
    ):
        unmanaged = Parameter(torch.ones(40, 40))
        ours = AdamW([*one.parameters.values(), *two.parameters.values(), unmanaged], lr=1e-2)
        theirs = AdamW(plain, lr=1e-2)
        for iteration in range(3):
            given = gradients(plain, iteration)
            for param, gradient in zip(plain, given, strict=True):
                param.grad = gradient.clone()
            half = len(one.parameters)
            one.give_gradients(given[:half])
            two.give_gradients(given[half:-1])
            unmanaged.grad = given[-1].clone()
            ours.step()
            theirs.step()
            check_states(ours, theirs)
        assert one.plans
        assert two.plans
        for mine, other in zip(ours.param_groups[0]["params"], plain, strict=True):
            check_bits(mine, other, "parameter")


def test_a_deep_copy_of_an_optimizer_is_plain(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), NVME) as own:
        twins = Twins.of(own, parameters(), partial(SGD, lr=0.1, momentum=0.9))
        twins.step(0)
        copied = copy.deepcopy(twins.ours)
        check_states(copied, twins.plain)
        num_plans = len(own.plans)
        copied.step()
        assert len(own.plans) == num_plans
        twins.check()


def test_parameters_that_come_later(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), NVME) as own:
        twins = Twins.of(own, parameters(), lambda params: AdamW(params[:2], lr=1e-2))
        for iteration in range(2):
            twins.step(iteration)
        for optimizer, params in (
            (twins.ours, own.parameters),
            (twins.plain, twins.plain_parameters),
        ):
            optimizer.add_param_group({"params": list(params.values())[2:], "lr": 0.1})
        for iteration in range(2, 4):
            twins.step(iteration)
