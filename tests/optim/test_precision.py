"""States in other types, and stochastic rounding: what they mean, and that nothing else matters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from tests.optim.small_session import (
    Placement,
    SmallSession,
    all_on,
    gradients,
    mixed,
    parameters,
    session,
)
from tests.optim.test_masters import some, unchanged_by
from tests.optim.test_states import saved_and_loaded
from tests.optim.twins import Make, check_bits, params_of
from zcompile.ir import Tier
from zcompile.optim.lion import Lion
from zcompile.precision import BLOCK, Precision
from zcompile.runtime.fuzz import FuzzExecutor

NVME = all_on(Tier.NVME)

OPTIMIZERS: dict[str, Make] = {
    "adamw": partial(AdamW, lr=1e-2, weight_decay=0.1),
    "adam-fused-amsgrad": partial(Adam, lr=1e-2, fused=True, amsgrad=True),
    "sgd": partial(SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": partial(Adagrad, lr=0.1),
    "rmsprop": partial(RMSprop, lr=1e-2, momentum=0.9, centered=True),
    "lion": partial(Lion, lr=1e-3),
}

PRECISIONS: dict[str, Precision] = {
    "bf16 states": Precision(states="bf16"),
    "masters, bf16 states": Precision(master=True, states="bf16"),
    "masters, 8-bit states": Precision(master=True, states="8bit"),
    "stochastic": Precision(stochastic=True, seed=7),
    "stochastic, 8-bit states": Precision(states="8bit", stochastic=True, seed=1 << 63),
    "masters, stochastic 8-bit states": Precision(master=True, states="8bit", stochastic=True),
}


def trained(own: SmallSession, optimizer: Optimizer, iterations: range) -> None:
    for iteration in iterations:
        own.give_gradients(gradients(own.parameters.values(), iteration))
        if iteration == 1:  # counts differ from here on
            own.parameters["long"].grad = None
        optimizer.step()


def everything(own: SmallSession, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return parameters and states, in copies."""
    return {
        f"{name}:{kind}": tensor.detach().clone()
        for name, parameter in own.parameters.items()
        for kind, tensor in [("", parameter), *optimizer.state[parameter].items()]
    }


def check_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for name, tensor in found.items():
        check_bits(tensor, expected[name], name)


USUAL = ("adamw", "sgd")

EACH = [
    pytest.param(make, id=name, marks=[] if name in USUAL else pytest.mark.slow)
    for name, make in OPTIMIZERS.items()
]


@pytest.mark.parametrize("make", EACH)
@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
def test_places_windows_threads_and_delays_change_no_bit(
    tmp_path: Path, precision: Precision, make: Make
) -> None:
    ways: list[tuple[Placement, int, dict[str, Any]]] = [
        (all_on(Tier.DEVICE), 1, {"window_bytes": None}),
        (NVME, 1, {"window_bytes": 96 << 10}),
        (mixed, 2, {"window_bytes": 1 << 20}),
        (NVME, 1, {"make_executor": partial(FuzzExecutor, seed=1)}),
    ]
    seen: list[dict[str, Tensor]] = []
    for placement, threads, options in ways:
        torch.set_num_threads(threads)
        with session(tmp_path, some(), placement, precision=precision, **options) as own:
            optimizer = make(list(own.parameters.values()))
            own.takeover.meet()
            trained(own, optimizer, range(3))
            seen.append(everything(own, optimizer))
            if placement is NVME:
                away = dict(optimizer.state[own.parameters["long"]])
                away.pop("step", None)
                assert set(own.tiers(away).values()) == {Tier.NVME}
    for found in seen[1:]:
        check_same(found, seen[0])


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
@pytest.mark.parametrize("name", ["adamw", "sgd", "lion"])
def test_resuming_gives_the_bits_of_the_run_that_went_on(
    tmp_path: Path, name: str, precision: Precision
) -> None:
    make = OPTIMIZERS[name]
    with session(tmp_path / "one", some(), mixed, precision=precision) as own:
        optimizer = make(list(own.parameters.values()))
        trained(own, optimizer, range(2))
        weights = {key: each.detach().clone() for key, each in own.parameters.items()}
        saved = saved_and_loaded(optimizer.state_dict())
        trained(own, optimizer, range(2, 4))
        expected = everything(own, optimizer)
    resumed = {key: Parameter(each) for key, each in weights.items()}
    with session(tmp_path / "two", resumed, NVME, precision=precision) as own:
        optimizer = make(list(resumed.values()))
        optimizer.load_state_dict(saved)
        trained(own, optimizer, range(2, 4))
        check_same(everything(own, optimizer), expected)


@pytest.mark.parametrize("name", ["adamw", "adam-fused-amsgrad", "sgd", "rmsprop"])
def test_states_in_bf16_are_states_in_fp32_that_are_rounded_between_steps(
    tmp_path: Path, name: str
) -> None:
    def floats() -> dict[str, Parameter]:
        return {key: each for key, each in parameters().items() if key != "embed.weight"}

    make = OPTIMIZERS[name]
    with session(tmp_path, floats(), NVME, precision=PRECISIONS["bf16 states"]) as own:
        ours, plain = make(list(own.parameters.values())), make(list(floats().values()))
        for iteration in range(3):
            given = gradients(own.parameters.values(), iteration)
            own.give_gradients(given)
            for parameter, gradient in zip(params_of(plain), given, strict=True):
                parameter.grad = gradient.clone()
            ours.step()
            plain.step()
            for mine, theirs in zip(params_of(ours), params_of(plain), strict=True):
                check_bits(mine, theirs, name)
                for kind, state in plain.state[theirs].items():
                    if kind == "step":
                        continue
                    state.copy_(state.bfloat16())
                    check_bits(ours.state[mine][kind], state.bfloat16(), kind)


def test_seeds_matter_and_moves_are_right_on_average(tmp_path: Path) -> None:
    def ones() -> dict[str, Parameter]:
        return {"w": Parameter(torch.ones(64 * BLOCK, dtype=torch.bfloat16))}

    def moved(seed: int, stochastic: bool) -> Tensor:
        precision = Precision(stochastic=stochastic, seed=seed)
        with session(tmp_path, ones(), NVME, precision=precision) as own:
            optimizer = SGD(own.parameters.values(), lr=2.0**-12)
            for _ in range(32):
                own.give_gradients([torch.full((64 * BLOCK,), -1.0)])
                optimizer.step()
            return own.parameters["w"].detach().float() - 1

    one, other = moved(1, stochastic=True), moved(2, stochastic=True)
    assert not torch.equal(one, other)
    for each in (one, other):  # of 16,384 walks; the standard deviation is 1.0 % of this
        assert abs(each.mean() / (32 * 2.0**-12) - 1) < 0.06
    assert torch.equal(one, moved(1, stochastic=True))
    assert not moved(1, stochastic=False).any()


def test_what_a_state_dict_shows_of_8_bits(tmp_path: Path) -> None:
    with session(tmp_path, some(), NVME, precision=PRECISIONS["masters, 8-bit states"]) as own:
        optimizer = OPTIMIZERS["adamw"](list(own.parameters.values()))
        trained(own, optimizer, range(1))
        at = list(own.parameters).index("long")
        shown = optimizer.state_dict()["state"][at]
        numel = own.parameters["long"].numel()
        assert list(shown) == [
            *("step", "exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale", "master")
        ]
        assert shown["exp_avg"].dtype is torch.uint8
        assert shown["exp_avg_sq_scale"].shape == (-(-numel // BLOCK),)
        assert shown["master"].dtype is torch.float32


def halves(dtype: torch.dtype) -> Callable[[], dict[str, Parameter]]:
    return lambda: {"w": Parameter(torch.ones(3000, dtype=dtype))}


@pytest.mark.parametrize(
    ("make", "dtype", "message"),
    [
        (
            partial(AdamW, lr=torch.tensor(0.1)),
            torch.bfloat16,
            r"rounding='stochastic': the update of w .*needs fused=True",
        ),
        (AdamW, torch.float16, r"fp16 is not rounded stochastically: train in bf16, or with"),
    ],
)
def test_what_cannot_be_rounded_stochastically_is_refused(
    tmp_path: Path, make: Make, dtype: torch.dtype, message: str
) -> None:
    with session(tmp_path, halves(dtype)(), NVME, precision=PRECISIONS["stochastic"]) as own:
        optimizer = make(list(own.parameters.values()))
        own.give_gradients(gradients(own.parameters.values(), 0))
        unchanged_by(own.parameters, optimizer, message)


def test_states_of_another_type_cannot_become_8_bits(tmp_path: Path) -> None:
    saved: dict[str, Any] = {}
    for precision in (Precision(master=True), PRECISIONS["masters, 8-bit states"]):
        with session(tmp_path, some(), NVME, precision=precision) as own:
            optimizer = OPTIMIZERS["adamw"](list(own.parameters.values()))
            own.takeover.meet()
            if saved:
                told = r"state_dtype='8bit': exp_avg of norm\.bias is .* call the model once before"
                with pytest.raises(ValueError, match=told):
                    optimizer.load_state_dict(saved)
            else:
                trained(own, optimizer, range(1))
                saved = saved_and_loaded(optimizer.state_dict())


def test_fewer_bits_move_fewer_bytes(tmp_path: Path) -> None:
    numel = 1 << 18
    moved: dict[str, float] = {}
    precisions = {"fp32": Precision(master=True), "8bit": PRECISIONS["masters, 8-bit states"]}
    for name, precision in precisions.items():
        made = {"w": Parameter(torch.ones(numel, dtype=torch.bfloat16))}
        with session(tmp_path, made, NVME, precision=precision, window_bytes=16 << 20) as own:
            optimizer = OPTIMIZERS["adamw"](list(own.parameters.values()))
            trained(own, optimizer, range(1))
            before = own.machine.ledger.snapshot()
            trained(own, optimizer, range(2, 3))
            since = own.machine.ledger.snapshot().since(before)
            moved[name] = sum(since.moved_bytes.values()) / numel
    assert moved["fp32"] == 30
    assert moved["8bit"] == 18 + 4 * 4 / BLOCK
