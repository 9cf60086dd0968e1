"""GradScaler: gradients scaled, unscaled, clipped and not finite, fused and not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, AdamW

from tests.optim.small_session import Placement, all_on, gradients, mixed, parameters, session
from tests.optim.twins import Make, Twins
from zcompile.ir import Tier

MAKES: dict[str, Make] = {
    "adamw": partial(AdamW, lr=1e-2),
    "adamw-fused": partial(AdamW, lr=1e-2, fused=True),
    "sgd-fused": partial(SGD, lr=1e-2, momentum=0.9, fused=True),
}


@pytest.mark.parametrize("placement", [all_on(Tier.NVME), mixed], ids=["nvme", "mixed"])
@pytest.mark.parametrize("unscale_first", [False, True])
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_scaled_gradients(
    tmp_path: Path, make: Make, unscale_first: bool, placement: Placement
) -> None:
    with session(tmp_path, parameters(), placement) as own:
        twins = Twins.of(own, parameters(), make)
        scalers = [
            GradScaler("cpu", init_scale=2.0**10, growth_interval=2, growth_factor=3.0)
            for _ in range(2)
        ]
        for scaler in scalers:
            scaler.scale(torch.ones(()))
        for iteration in range(6):
            given = gradients(own.parameters.values(), iteration)
            scale = scalers[0].get_scale()
            given = [gradient * scale for gradient in given]
            if iteration in (2, 3):
                given[iteration].fill_(torch.inf)
            twins.give(given)
            for scaler, optimizer in zip(scalers, (twins.ours, twins.plain), strict=True):
                if unscale_first:
                    scaler.unscale_(optimizer)
                    params = [each for group in optimizer.param_groups for each in group["params"]]
                    torch.nn.utils.clip_grad_norm_(params, 5.0)
                scaler.step(optimizer)
                scaler.update()
            twins.check()
        assert scalers[0].get_scale() == scalers[1].get_scale()
        assert own.plans


def test_the_first_gradients_are_not_finite(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), all_on(Tier.NVME)) as own:
        twins = Twins.of(own, parameters(), MAKES["adamw-fused"])
        for optimizer in (twins.ours, twins.plain):
            optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
        twins.step(0)
        states = {str(at): state["exp_avg"] for at, state in enumerate(twins.ours.state.values())}
        assert set(own.tiers(states).values()) == {Tier.NVME}
        for optimizer in (twins.ours, twins.plain):
            del optimizer.found_inf  # type: ignore[attr-defined]
        twins.step(1)


def test_sgd_begins_its_momentum_with_the_first_finite_gradient(tmp_path: Path) -> None:
    # torch makes a momentum of whatever lay in memory in this case; so nothing to compare with.
    with session(tmp_path, parameters(), all_on(Tier.NVME)) as own:
        optimizer = MAKES["sgd-fused"](list(own.parameters.values()))
        optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
        own.give_gradients(gradients(own.parameters.values(), 0))
        optimizer.step()
        assert not optimizer.state
        del optimizer.found_inf  # type: ignore[attr-defined]
        optimizer.step()
        for param, state in optimizer.state.items():
            assert param.grad is not None
            assert torch.equal(state["momentum_buffer"], param.grad)
