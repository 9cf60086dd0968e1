"""The central test: whatever travels, every bit is that of the plain optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR

from tests.optim.small_session import Placement, all_on, mixed, parameters, session
from tests.optim.twins import Make, Twins
from zcompile.ir import Tier
from zcompile.optim.lion import Lion
from zcompile.runtime.fuzz import FuzzExecutor

PLACEMENTS: dict[str, tuple[Placement, int]] = {
    "nvme": (all_on(Tier.NVME), 20),
    "mixed": (mixed, 8),
    "host": (all_on(Tier.HOST), 6),
    "device": (all_on(Tier.DEVICE), 4),
}
"""By name: the placement, and for how many iterations to compare."""

OPTIMIZERS: dict[str, Make] = {
    "adamw": partial(AdamW, lr=1e-2),
    "adamw-fused": partial(AdamW, lr=1e-2, fused=True),
    "adamw-foreach-amsgrad": partial(AdamW, lr=1e-2, foreach=True, amsgrad=True),
    "adam-l2-maximize": partial(Adam, lr=1e-2, weight_decay=0.1, maximize=True),
    "adam-fused-amsgrad": partial(Adam, lr=1e-2, fused=True, amsgrad=True, weight_decay=0.1),
    "adam-tensor-lr": lambda params: Adam(params, lr=torch.tensor(1e-2)),
    "adam-tensor-betas": lambda params: Adam(
        params, betas=(torch.tensor(0.9), torch.tensor(0.99)), eps=1e-6
    ),
    "sgd": partial(SGD, lr=0.1),
    "sgd-momentum": partial(SGD, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "sgd-nesterov-foreach": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "sgd-fused": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, fused=True, maximize=True),
    "adagrad": partial(Adagrad, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.2),
    "adagrad-fused": partial(Adagrad, lr=0.1, weight_decay=0.01, fused=True),
    "adagrad-foreach": partial(Adagrad, lr=0.1, foreach=True, maximize=True),
    "rmsprop": partial(RMSprop, lr=1e-2, weight_decay=0.01),
    "rmsprop-foreach": partial(RMSprop, lr=1e-2, foreach=True, momentum=0.9, centered=True),
    "lion": partial(Lion, lr=1e-2, weight_decay=0.1),
    "sgd-tensor-lr": lambda params: SGD(params, lr=torch.tensor(0.1), momentum=0.9),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize(("placement", "iterations"), PLACEMENTS.values(), ids=PLACEMENTS)
def test_every_bit_is_plain(
    tmp_path: Path, placement: Placement, iterations: int, make: Make
) -> None:
    with session(tmp_path, parameters(), placement) as own:
        twins = Twins.of(own, parameters(), make)
        names = cycle(own.parameters)
        for iteration in range(iterations):
            # One after the other goes without a gradient, so they count differently.
            twins.step(iteration, without=[next(names)] if iteration % 3 == 1 else [])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["adamw", "sgd-momentum"])
@pytest.mark.parametrize("placement", [all_on(Tier.NVME), mixed], ids=["nvme", "mixed"])
def test_every_bit_is_plain_when_copies_are_late_and_memory_is_spoilt(
    tmp_path: Path, placement: Placement, name: str, seed: int
) -> None:
    late = partial(FuzzExecutor, seed=seed)
    with session(tmp_path, parameters(), placement, make_executor=late) as own:
        twins = Twins.of(own, parameters(), OPTIMIZERS[name])
        for iteration in range(3):
            twins.step(iteration)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        *("adamw", "adam-l2-maximize", "adamw-fused", "sgd-momentum"),
        *("adagrad", "adagrad-fused", "rmsprop", "rmsprop-foreach", "lion"),
    ],
)
def test_every_bit_is_plain_in_other_types(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    with session(tmp_path, parameters(dtype), all_on(Tier.NVME)) as own:
        twins = Twins.of(own, parameters(dtype), OPTIMIZERS[name])
        for iteration in range(4):
            twins.step(iteration)


@pytest.mark.parametrize("name", ["adamw", "adamw-fused", "sgd-momentum"])
def test_every_bit_is_plain_on_two_threads(tmp_path: Path, name: str) -> None:
    torch.set_num_threads(2)
    for dtype in (torch.float32, torch.bfloat16):
        # SGD in bf16 has to update the odd sizes whole.
        with session(tmp_path, parameters(dtype), all_on(Tier.NVME), window_bytes=1 << 20) as own:
            twins = Twins.of(own, parameters(dtype), OPTIMIZERS[name])
            for iteration in range(3):
                twins.step(iteration)


def in_groups(kind: Callable[..., Optimizer]) -> Make:
    def make(params: list[Parameter]) -> Optimizer:
        return kind(
            [
                {"params": params[:2], "lr": 0.1, "weight_decay": 0.3},
                {"params": params[2:3], "lr": 0.0},
                {"params": params[3:], "maximize": True},
            ],
            lr=1e-3,
        )

    return make


@pytest.mark.parametrize("kind", [AdamW, SGD, Adagrad, RMSprop, Lion])
def test_groups_and_schedulers(tmp_path: Path, kind: Callable[..., Optimizer]) -> None:
    with session(tmp_path, parameters(), mixed) as own:
        twins = Twins.of(own, parameters(), in_groups(kind))
        schedulers = [CosineAnnealingLR(each, T_max=5) for each in (twins.ours, twins.plain)]
        for iteration in range(6):
            twins.step(iteration)
            for scheduler in schedulers:
                scheduler.step()  # warns, so fails, if it believes that no step was made
            assert schedulers[0].get_last_lr() == schedulers[1].get_last_lr()


def test_flags_changed_between_steps(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), all_on(Tier.NVME)) as own:
        twins = Twins.of(own, parameters(), partial(SGD, lr=0.1))
        changes: tuple[dict[str, object], ...] = (
            {},
            {"momentum": 0.9},
            {"lr": 0.3, "nesterov": True},
            {"momentum": 0},
        )
        for iteration, change in enumerate(changes):
            for optimizer in (twins.ours, twins.plain):
                optimizer.param_groups[0].update(change)
            twins.step(iteration)


def test_much_more_travels_than_the_window_holds(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), all_on(Tier.NVME)) as own:
        twins = Twins.of(own, parameters(), OPTIMIZERS["adamw"])
        twins.step(0)
        twins.step(1)
        moved = own.machine.ledger.snapshot().moved_bytes
        assert sum(moved.values()) > 10 * own.plans[-1].arena_bytes
        assert own.plans[-1].arena_bytes > 0
        states = {
            f"{at}:{kind}": state[kind]
            for at, state in enumerate(twins.ours.state.values())
            for kind in ("exp_avg", "exp_avg_sq")
        }
        assert set(own.tiers(states).values()) == {Tier.NVME}
