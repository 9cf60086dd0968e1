"""Runs that are taken up again: loaded states come home before anything is computed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from tests.e2e.nets import WIDTH, Net, loss_of, made, optimizer_of, step, x_of
from tests.e2e.sides import copies, in_file
from tests.mechanisms.at_home import check_in_file, check_training
from zcompile.backend import Backend


def states_of(optimizer: Optimizer) -> list[Tensor]:
    states = [each for state in optimizer.state.values() for each in state.values()]
    return [each for each in states if each.dim() > 0]


def a_state_dict() -> dict[str, Any]:
    plain = made(Net)
    optimizer = optimizer_of(plain)
    step(plain, plain, optimizer, 0)
    return optimizer.state_dict()


def test_what_was_loaded_comes_home_with_the_first_call(swap_dir: Path) -> None:
    backend, model = Backend(), made(Net)
    call, optimizer = in_file(model, swap_dir, backend), optimizer_of(model)
    optimizer.load_state_dict(a_state_dict())
    assert states_of(optimizer)
    call(x_of(0))
    (session,) = backend.sessions(model)
    check_in_file(session, states_of(optimizer))


def test_what_is_loaded_later_comes_home_at_once(swap_dir: Path) -> None:
    backend, model = Backend(), made(Net)
    call, optimizer = in_file(model, swap_dir, backend), optimizer_of(model)
    call(x_of(0))
    optimizer.load_state_dict(a_state_dict())
    (session,) = backend.sessions(model)
    check_in_file(session, states_of(optimizer))


def test_states_of_another_type_are_loaded_as_torch_loads_them(swap_dir: Path) -> None:
    def half() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)).bfloat16()

    whole = made(lambda: half().float())
    trained = AdamW(whole.parameters())
    loss_of(whole, 0).backward()
    trained.step()
    saved = trained.state_dict()

    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = AdamW(model.parameters())
        optimizer.load_state_dict(copy.deepcopy(saved))
        assert all(each.dtype is torch.bfloat16 for each in states_of(optimizer))
        seen: list[Tensor] = []
        for seed in range(2):
            optimizer.zero_grad()
            call(x_of(seed).bfloat16()).float().square().mean().backward()
            optimizer.step()
            seen += copies(model, *states_of(optimizer))
        return seen

    check_training(lambda: made(half), train, swap_dir)
