"""Optimizers that torch itself updates: right bits, and states that come home or are told of."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from tests.e2e.jobs import compiled
from tests.e2e.nets import WIDTH, loss_of, made, x_of
from tests.e2e.sides import copies, in_file
from tests.mechanisms.at_home import check_in_file, check_training
from zcompile.backend import Backend
from zcompile.ir import Tier

Make = Callable[[list[nn.Parameter]], Optimizer]

TOLD = r"made \d+ bytes of states in ordinary memory, outside the budget"


def two() -> nn.Module:
    """Return matrices alone, since Muon takes nothing else."""
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH, bias=False)
    )


class Flat(Optimizer):
    """Keeps the states of all its parameters in one tensor, and views of it beside."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        super().__init__(params, {})
        self.flat = torch.zeros(sum(each.numel() for each in params))
        start = 0
        for param in params:
            self.state[param]["moment"] = self.flat.narrow(0, start, param.numel()).view_as(param)
            start += param.numel()

    def step(self, closure: Any = None) -> Any:
        del closure
        params: list[nn.Parameter] = self.param_groups[0]["params"]
        self.flat.mul_(0.5).add_(torch.cat([e.grad.view(-1) for e in params if e.grad is not None]))
        with torch.no_grad():
            for param in params:
                param.sub_(self.state[param]["moment"], alpha=0.01)


class Nested(Optimizer):
    """Keeps states in lists and dictionaries, some in other types, and a small one."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        del closure
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            state.setdefault("past", []).append(param.grad.flatten().double())
            state["deep"] = {"mean": (torch.stack(state["past"]).mean(0),), "rows": param.sum(1)}
            param.sub_(state["deep"]["mean"][0].view_as(param), alpha=0.01)


OPTIMIZERS: dict[str, Make] = {
    "adadelta": optim.Adadelta,
    "adafactor": partial(optim.Adafactor, lr=1e-2),
    "adamax": optim.Adamax,
    "asgd": optim.ASGD,
    "muon": optim.Muon,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "rprop": optim.Rprop,
    "flat": Flat,
    "nested": Nested,
}


def tensors_in(value: Any) -> list[Tensor]:
    return [each for each in pytree.tree_leaves(value) if isinstance(each, Tensor)]


def large_states(optimizer: Optimizer) -> list[Tensor]:
    return [
        each
        for param, state in optimizer.state.items()
        for each in tensors_in(state)
        if each.numel() >= param.numel()
    ]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.filterwarnings(f"ignore:.*{TOLD}:UserWarning")
def test_states_come_home(make: Make, swap_dir: Path) -> None:
    made_of: list[Optimizer] = []

    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = make(list(model.parameters()))
        made_of.append(optimizer)
        seen: list[Tensor] = []
        for seed in range(3):
            optimizer.zero_grad()
            loss_of(call, seed).backward()
            optimizer.step()
            seen += copies(model)
        return seen

    session, _ = check_training(lambda: made(two), train, swap_dir)
    states = large_states(made_of[-1])
    if make is not OPTIMIZERS["adafactor"]:  # which has rows and columns alone
        check_in_file(session, states)
        assert sum(each.nbytes for each in states) >= 2 * 2 * WIDTH * WIDTH * 4


@pytest.mark.filterwarnings(f"ignore:.*{TOLD}:UserWarning")
def test_the_history_of_lbfgs_comes_home(swap_dir: Path) -> None:
    made_of: list[Optimizer] = []

    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = optim.LBFGS(model.parameters(), max_iter=4, history_size=3)
        made_of.append(optimizer)

        step = cast("Callable[..., Any]", optimizer.step)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(call, 0)
            loss.backward()
            return loss

        for _ in range(3):
            step(closure)
        return copies(model)

    session, _ = check_training(lambda: made(two), train, swap_dir)
    states = large_states(made_of[-1])
    assert len(states) > 6
    check_in_file(session, states)


def test_states_made_before_the_first_call_come_home_with_it(swap_dir: Path) -> None:
    backend, model = Backend(), made(two)
    call, optimizer = in_file(model, swap_dir, backend), optim.Adagrad(model.parameters())
    call(x_of(0))
    (session,) = backend.sessions(model)
    check_in_file(session, large_states(optimizer))


class Overlapping(nn.Module):
    """Two parameters over one storage, which AdamW is not taken over for."""

    def __init__(self) -> None:
        super().__init__()
        block = torch.randn(2 * WIDTH, WIDTH) * 0.1
        self.first, self.second = (
            nn.Parameter(block[:WIDTH]),
            nn.Parameter(block[WIDTH // 2 :][:WIDTH]),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second


def test_states_of_parameters_that_overlap_are_told_of(swap_dir: Path) -> None:
    backend, model = Backend(), made(Overlapping)
    call, optimizer = in_file(model, swap_dir, backend), optim.AdamW(model.parameters())
    loss_of(call, 0).backward()
    with pytest.warns(UserWarning, match=f"AdamW {TOLD}"):
        optimizer.step()
    (session,) = backend.sessions(model)
    check_in_file(session, large_states(optimizer))


def test_without_a_file_what_stays_is_told(swap_dir: Path) -> None:
    del swap_dir
    backend, model = Backend(), made(two)
    place = {"parameters": "host", "gradients": "host", "optimizer": "host"}
    options = {"compute": "eager", "device_budget": "8MiB", "host_budget": "8MiB", "place": place}
    call, optimizer = compiled(model, options, backend), Nested(list(model.parameters()))
    loss_of(call, 0).backward()
    with pytest.warns(UserWarning, match=r"\d+ bytes more stay there: give nvme_dir"):
        optimizer.step()
    (session,) = backend.sessions(model)
    resting = [session.machine.homes.find(each) for each in model.parameters()]
    assert all(place is not None and place.home.tier is Tier.HOST for place in resting)
    gc.collect()
