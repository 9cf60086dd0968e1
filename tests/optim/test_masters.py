"""Master weights: the bits of a loop in plain torch over copies in fp32, whatever travels."""

from __future__ import annotations

import copy
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn import Parameter
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR

from tests.optim.masters import MasterTwins
from tests.optim.small_session import Placement, all_on, gradients, mixed, parameters, session
from tests.optim.test_states import saved_and_loaded, tiers_of_states
from tests.optim.twins import Make, check_bits
from zcompile.ir import Tier
from zcompile.optim.lion import Lion
from zcompile.optim.native import NativeKernels
from zcompile.precision import Precision
from zcompile.runtime.fuzz import FuzzExecutor

MASTERS = Precision(master=True)
NVME = all_on(Tier.NVME)
PLACEMENTS = {
    "nvme": NVME,
    "mixed": mixed,
    "host": all_on(Tier.HOST),
    "device": all_on(Tier.DEVICE),
}

OPTIMIZERS: dict[str, Make] = {
    "adamw": partial(AdamW, lr=1e-2),
    "adamw-fused-amsgrad": partial(AdamW, lr=1e-2, fused=True, amsgrad=True),
    "adam-foreach-l2-maximize": partial(
        Adam, lr=1e-2, weight_decay=0.1, maximize=True, foreach=True
    ),
    "adam-tensor-lr": lambda params: Adam(params, lr=torch.tensor(1e-2)),
    "sgd": partial(SGD, lr=0.1),
    "sgd-momentum": partial(SGD, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "sgd-nesterov-foreach": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "adagrad": partial(Adagrad, lr=0.1, initial_accumulator_value=0.1),
    "rmsprop": partial(RMSprop, lr=1e-2, momentum=0.9, centered=True),
    "lion": partial(Lion, lr=1e-3, weight_decay=0.1),
    "sgd-fused": partial(SGD, lr=0.1, momentum=0.9, fused=True, maximize=True),
}


def some(dtype: torch.dtype = torch.bfloat16) -> dict[str, Parameter]:
    """Return parameters of awkward sizes and strides; one of them has no need of a master."""
    made = parameters(dtype)
    return {
        name: Parameter(each.detach().float()) if name == "norm.bias" else each
        for name, each in made.items()
        if name in ("turned.weight", "norm.bias", "scale", "conv.weight", "long")
    }


@pytest.fixture(params=["native", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whose kernels update."""
    name: str = request.param
    monkeypatch.setenv("ZINF_NATIVE", "1" if name == "native" else "0")
    assert (NativeKernels.load() is not None) == (name == "native")
    return name


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS)
@pytest.mark.usefixtures("kernels")
def test_every_bit_is_that_of_a_loop_over_masters(
    tmp_path: Path, placement: Placement, make: Make
) -> None:
    with session(tmp_path, some(), placement, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(), make)
        names = cycle(own.parameters)
        for iteration in range(4):
            twins.step(iteration, without=[next(names)] if iteration == 1 else [])
        states = {
            f"{at}:{name}": tensor
            for at, name in enumerate(own.parameters)
            for tensor in twins.ours.state[own.parameters[name]].values()
            if tensor.dim() > 0
        }
        if placement is NVME:
            assert set(own.tiers(states).values()) <= {Tier.NVME}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("window_bytes", [96 << 10, 1 << 20, None])
@pytest.mark.usefixtures("kernels")
def test_in_both_types_and_any_window(
    tmp_path: Path, dtype: torch.dtype, window_bytes: int | None
) -> None:
    made = some(dtype)
    with session(tmp_path, made, NVME, precision=MASTERS, window_bytes=window_bytes) as own:
        twins = MasterTwins.of(own, some(dtype), OPTIMIZERS["adamw"])
        for iteration in range(3):
            twins.step(iteration)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("placement", [NVME, mixed], ids=["nvme", "mixed"])
def test_when_copies_are_late_and_memory_is_spoilt(
    tmp_path: Path, placement: Placement, seed: int
) -> None:
    late = partial(FuzzExecutor, seed=seed)
    with session(tmp_path, some(), placement, precision=MASTERS, make_executor=late) as own:
        twins = MasterTwins.of(own, some(), OPTIMIZERS["adamw"])
        for iteration in range(3):
            twins.step(iteration)


@pytest.mark.usefixtures("kernels")
def test_on_two_threads(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    with session(tmp_path, some(), NVME, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(), OPTIMIZERS["sgd-momentum"])
        for iteration in range(3):
            twins.step(iteration)


@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.usefixtures("kernels")
def test_a_master_follows_what_is_written_into_its_parameter(
    tmp_path: Path, through_data: bool
) -> None:
    with session(tmp_path, some(), mixed, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(), OPTIMIZERS["adamw"])
        twins.step(0)
        for params in (own.parameters, twins.plain_parameters):
            long = params["long"].data if through_data else params["long"].detach()
            long.clamp_(-0.5, 0.5)
            long[:100] = 3.25
            params["conv.weight"].data.zero_()
        twins.follow()
        # What was clamped but lay within keeps the bits that only the master has.
        kept = twins.masters["long"]
        assert (kept != kept.bfloat16()).sum() > 1000
        twins.step(1)
        twins.step(2)


def test_groups_schedulers_freezing_and_new_parameters(tmp_path: Path) -> None:
    def make(params: list[Parameter]) -> Optimizer:
        first: dict[str, Any] = {"params": params[:2], "lr": 0.1, "weight_decay": 0.3}
        return AdamW([first, {"params": params[2:4]}], lr=1e-3)

    with session(tmp_path, some(), mixed, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(), make)
        last = list(own.parameters)[4]
        reserve = Parameter(twins.plain_parameters[last].detach().float())
        twins.plain.add_param_group({"params": [reserve], "maximize": True})
        twins.ours.add_param_group({"params": [own.parameters[last]], "maximize": True})
        schedulers = [CosineAnnealingLR(each, T_max=3) for each in (twins.ours, twins.plain)]
        for iteration in range(4):
            twins.step(iteration, without=["turned.weight"] if iteration in (1, 2) else [])
            for scheduler in schedulers:
                scheduler.step()


@pytest.mark.parametrize(
    ("dtype", "fused"),
    # torch refuses to unscale gradients in fp16, so there they go to fused kernels.
    [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, True)],
    ids=str,
)
@pytest.mark.usefixtures("kernels")
def test_scaled_gradients(tmp_path: Path, dtype: torch.dtype, fused: bool) -> None:
    with session(tmp_path, some(dtype), NVME, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(dtype), partial(AdamW, lr=1e-2, fused=fused))
        scalers = [GradScaler("cpu", init_scale=2.0**3, growth_interval=2) for _ in range(2)]
        for scaler in scalers:
            scaler.scale(torch.ones(()))
        for iteration in range(4):
            scale = scalers[0].get_scale()
            given = [each * scale for each in gradients(own.parameters.values(), iteration)]
            if iteration in (0, 2):
                given[iteration].fill_(torch.inf)
            twins.give(given)
            for scaler, optimizer in zip(scalers, (twins.ours, twins.plain), strict=True):
                scaler.step(optimizer)
                scaler.update()
            twins.round()
            twins.check()
        assert scalers[0].get_scale() == scalers[1].get_scale()


def test_clipping(tmp_path: Path) -> None:
    with session(tmp_path, some(), NVME, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(), OPTIMIZERS["adamw"])
        for iteration in range(3):
            given = gradients(own.parameters.values(), iteration)
            twins.session.give_gradients(given)
            torch.nn.utils.clip_grad_norm_(own.parameters.values(), 1.0)
            for parameter, gradient in zip(twins.plain_parameters.values(), given, strict=True):
                parameter.grad = gradient.clone()
            torch.nn.utils.clip_grad_norm_(twins.plain_parameters.values(), 1.0)
            for name, master in twins.masters.items():
                clipped = twins.plain_parameters[name].grad
                assert clipped is not None
                master.grad = clipped.to(master.dtype)
            twins.ours.step()
            twins.plain.step()
            twins.round()
            twins.check()


@pytest.mark.parametrize("met_before", [False, True])
@pytest.mark.parametrize("name", ["adamw", "sgd", "sgd-momentum"])
def test_resuming_gives_the_bits_of_the_run_that_went_on(
    tmp_path: Path, name: str, met_before: bool
) -> None:
    make = OPTIMIZERS[name]
    with session(tmp_path / "one", some(), mixed, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(), make)
        for iteration in range(3):
            twins.step(iteration)
        weights = {k: v.detach().clone() for k, v in own.parameters.items()}
        saved = saved_and_loaded(twins.ours.state_dict())
        at = list(own.parameters).index("long")
        assert saved["state"][at]["master"].dtype is torch.float32
        resumed = {k: Parameter(torch.empty_like(v).normal_()) for k, v in some().items()}
        with session(tmp_path / "two", resumed, NVME, precision=MASTERS) as again:
            ours = make(list(resumed.values()))
            if met_before:
                again.takeover.meet()
            ours.load_state_dict(saved)  # before the model is loaded
            with torch.no_grad():
                for key, parameter in resumed.items():
                    parameter.copy_(weights[key])
            over = MasterTwins(again, ours, twins.plain, twins.plain_parameters)
            for iteration in range(3, 5):
                over.step(iteration)


def test_loading_in_mid_run_and_copying(tmp_path: Path) -> None:
    with session(tmp_path, some(), NVME, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(), OPTIMIZERS["adamw"])
        twins.step(0)
        saved = [copy.deepcopy(each.state_dict()) for each in (twins.ours, twins.plain)]
        kept = [
            {name: each.detach().clone() for name, each in params.items()}
            for params in (own.parameters, twins.plain_parameters, twins.masters)
        ]
        twins.step(1)
        twins.ours.load_state_dict(saved[0])
        twins.plain.load_state_dict(saved[1])
        for params, values in zip(
            (own.parameters, twins.plain_parameters, twins.masters), kept, strict=True
        ):
            for name, each in params.items():
                each.data.copy_(values[name])
        assert tiers_of_states(own, twins.ours) == {Tier.NVME}
        twins.step(2)


def test_a_run_without_masters_goes_on_with_them(tmp_path: Path) -> None:
    make = partial(AdamW, lr=1e-2)
    before = make([*some().values()])
    for param, gradient in zip(
        before.param_groups[0]["params"], gradients(some().values(), 9), strict=True
    ):
        param.grad = gradient
    before.step()
    with session(tmp_path, some(), NVME, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(), make)
        for optimizer in (twins.ours, twins.plain):  # torch casts to fp32, as we do
            optimizer.load_state_dict(copy.deepcopy(before.state_dict()))
        twins.step(0)
        twins.step(1)


def test_a_master_that_was_cast_is_told_of_and_begins_anew(tmp_path: Path) -> None:
    with session(tmp_path, some(), NVME, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(), OPTIMIZERS["sgd"])
        twins.step(0)
        saved = twins.ours.state_dict()
        del saved["state"]["zinf.full_precision"]
        with pytest.warns(UserWarning, match=r"masters of 4 parameters, turned\.weight the first"):
            twins.ours.load_state_dict(saved)
        for name, master in twins.masters.items():
            master.data.copy_(twins.plain_parameters[name].data)
        twins.step(1)


def test_without_the_option_full_precision_is_dropped_and_told_of(tmp_path: Path) -> None:
    with session(tmp_path / "one", some(), NVME, precision=MASTERS) as own:
        twins = MasterTwins.of(own, some(), OPTIMIZERS["adamw"])
        twins.step(0)
        saved = saved_and_loaded(twins.ours.state_dict())
    with session(tmp_path / "two", some(), NVME) as own:
        optimizer = OPTIMIZERS["adamw"](list(own.parameters.values()))
        optimizer.load_state_dict(saved)
        with pytest.warns(UserWarning, match=r"states in full precision for 4 parameters"):
            own.takeover.meet()
        assert "zinf.full_precision" not in optimizer.state_dict()["state"]
        state = optimizer.state[own.parameters["long"]]
        assert state["exp_avg"].dtype is torch.bfloat16


def unchanged_by(own: dict[str, Parameter], optimizer: Optimizer, error: str) -> None:
    before = {name: each.detach().clone() for name, each in own.items()}
    with pytest.raises(ValueError, match=error):
        optimizer.step()
    for name, each in own.items():
        check_bits(each, before[name], name)


def test_what_cannot_be_made_so_is_refused(tmp_path: Path) -> None:
    with session(tmp_path, some(), NVME, precision=MASTERS) as own:
        params = list(own.parameters.values())
        own.give_gradients(gradients(params, 0))
        unchanged_by(
            own.parameters,
            Adafactor(params),
            "master_weights=True.*Adafactor is updated by its own",
        )
        unchanged_by(own.parameters, Adam(params, capturable=True), "capturable=True is for")
        turned = own.parameters["turned.weight"]
        assert turned.grad is not None
        turned.grad = turned.grad.t().contiguous().t().clone(memory_format=torch.contiguous_format)
        unchanged_by(
            own.parameters, AdamW(params), "update of turned.weight .*a gradient of its layout"
        )
        turned.grad = None
        AdamW(params).step()
