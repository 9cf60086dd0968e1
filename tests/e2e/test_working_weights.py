"""Masters in fp32 for a model in bf16: whole trainings, within budgets, against plain PyTorch."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.ir import Tier
from zcompile.session import Session

WIDTH = 256

ADAMW: Callable[..., Optimizer] = partial(AdamW, lr=1e-2, weight_decay=0.1)
MOMENTUM: Callable[..., Optimizer] = partial(SGD, lr=0.1, momentum=0.9)


def model() -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)]
    return nn.Sequential(*layers).bfloat16()


def x_of(seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(4, 8, generator=random).bfloat16()


def loss_of(call: Any, seed: int) -> Tensor:
    loss: Tensor = call(x_of(seed)).float().square().mean()
    loss.backward()
    return loss.detach().clone()


def plain(make: Callable[..., Optimizer], seeds: range) -> list[Tensor]:
    """Return what training gives if somebody keeps masters by hand."""
    ours = model()
    params = list(ours.parameters())
    masters = [Parameter(each.detach().float()) for each in params]
    optimizer, losses = make(masters), list[Tensor]()
    for seed in seeds:
        losses.append(loss_of(ours, seed))
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        for param, master in zip(params, masters, strict=True):
            assert param.grad is not None
            master.grad, param.grad = param.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for param, master in zip(params, masters, strict=True):
                param.copy_(master)
    states = [
        state
        for master in masters
        for state in (*optimizer.state[master].values(), master)
        if state.dim() > 0
    ]
    return [*losses, *(each.detach() for each in params), *(each.detach() for each in states)]


def train(ours: nn.Module, call: Any, optimizer: Optimizer, seeds: range) -> list[Tensor]:
    losses: list[Tensor] = []
    for seed in seeds:
        losses.append(loss_of(call, seed))
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def all_of(ours: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    states = [
        state
        for param in ours.parameters()
        for state in optimizer.state[param].values()
        if state.dim() > 0
    ]
    return [*(each.detach() for each in ours.parameters()), *states]


def compiled(ours: nn.Module, backend: Backend, **options: Any) -> Any:
    options = {"compute": "eager", "master_weights": True, **options}
    return torch.compile(ours, backend=backend, options=options)


def session_of(backend: Backend, ours: nn.Module) -> Session:
    (session,) = backend.sessions(ours)
    return session


def check(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


def smallest(**options: Any) -> int:
    with pytest.raises(BudgetError) as error:
        compiled(model(), Backend(), device_budget=1000, **options)(x_of(0))
    return error.value.smallest_bytes


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("make", [ADAMW, MOMENTUM], ids=["adamw", "sgd"])
@pytest.mark.parametrize("off", [Tier.NVME, Tier.HOST])
@pytest.mark.parametrize("percent", [100, 300])
def test_masters_by_hand_and_by_option_are_the_same(
    percent: int,
    off: Tier,
    make: Callable[..., Optimizer],
    native: str,
    swap_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZINF_NATIVE", native)
    where: dict[str, Any] = {"nvme_dir": swap_dir} if off is Tier.NVME else {"host_budget": "1GiB"}
    budget = smallest(**where) * percent // 100
    ours, backend = model(), Backend()
    call = compiled(ours, backend, device_budget=budget, **where)
    optimizer = make(ours.parameters())
    losses = train(ours, call, optimizer, range(3))
    check([*losses, *all_of(ours, optimizer)], plain(make, range(3)))
    session = session_of(backend, ours)
    assert session.planned_peak_bytes <= budget
    assert session.total().peak_bytes[Tier.DEVICE] <= budget
    weight = next(each for each in ours.parameters() if each.numel() == WIDTH * WIDTH)
    place = session.machine.homes.find(optimizer.state[weight]["master"])
    assert place is not None
    assert place.home.tier is off


def test_without_a_budget_nothing_moves_and_masters_are_kept() -> None:
    ours, backend = model(), Backend()
    call, optimizer = compiled(ours, backend), ADAMW(ours.parameters())
    losses = train(ours, call, optimizer, range(3))
    check([*losses, *all_of(ours, optimizer)], plain(ADAMW, range(3)))
    assert sum(session_of(backend, ours).total().moved_bytes.values()) == 0


def test_a_run_that_is_resumed_before_the_first_call_goes_on_with_the_same_bits(
    swap_dir: Path,
) -> None:
    where = {"nvme_dir": swap_dir, "device_budget": smallest(nvme_dir=swap_dir)}
    ours = model()
    call, optimizer = compiled(ours, Backend(), **where), ADAMW(ours.parameters())
    losses = train(ours, call, optimizer, range(2))
    file = io.BytesIO()
    torch.save({"model": ours.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)

    again = model()
    call, resumed = compiled(again, Backend(), **where), ADAMW(again.parameters())
    resumed.load_state_dict(saved["optimizer"])
    again.load_state_dict(saved["model"])
    losses += train(again, call, resumed, range(2, 4))
    check([*losses, *all_of(again, resumed)], plain(ADAMW, range(4)))


def test_the_forecast_counts_masters_and_the_error_names_them(swap_dir: Path) -> None:
    options: dict[str, Any] = {"nvme_dir": swap_dir, "place": {"optimizer": "device"}}
    numel = sum(each.numel() for each in model().parameters())
    with pytest.raises(BudgetError, match=r"2\.weight:master: 262144 B") as error:
        compiled(model(), Backend(), device_budget=200_000, **options)(x_of(0))
    ours, budget = model(), error.value.smallest_bytes
    call = compiled(ours, Backend(), device_budget=budget, **options)
    loss_of(call, 0)  # masters have room, and until the first step nothing else is certain
    with pytest.raises(BudgetError, match=r"2\.weight:exp_avg: 262144 B") as error:
        ADAMW(ours.parameters()).step()
    names = {name for name, _ in error.value.values}
    assert {f"2.weight:{kind}" for kind in ("exp_avg", "exp_avg_sq", "master")} <= names
    assert 0 <= error.value.smallest_bytes - 8 * numel - budget <= 16384  # I/O buffers grow too
    ours, backend, budget = model(), Backend(), error.value.smallest_bytes
    call = compiled(ours, backend, device_budget=budget, **options)
    optimizer = ADAMW(ours.parameters())
    losses = train(ours, call, optimizer, range(2))
    check([*losses, *all_of(ours, optimizer)], plain(ADAMW, range(2)))
    assert session_of(backend, ours).total().peak_bytes[Tier.DEVICE] <= budget
