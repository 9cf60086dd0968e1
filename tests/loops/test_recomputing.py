"""Activation checkpointing, around the compiled model and inside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.loops.nets import (
    GRADIENT_OF_NO_LEAF,
    WIDTH,
    Layers,
    adamw,
    checkpoint,
    checkpoint_sequential,
    x_of,
)
from tests.loops.playing import Run, check_loop


class Dropping(nn.Module):
    """A layer with dropout, whose recomputation has to draw the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.tanh(self.drop(self.linear(x)))
        return result


class Inside(nn.Module):
    """Layers each of which is recomputed."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Dropping() for _ in range(4))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings(GRADIENT_OF_NO_LEAF)
def test_checkpoints_inside(reentrant: bool, swap_dir: Path) -> None:
    """Batches differ: so do the sizes of all that is saved, but for the generator's state."""

    def loop(run: Run) -> None:
        model = Inside(reentrant)
        call, optimizer = run.compile(model), adamw(model.parameters())
        for seed in range(3):
            optimizer.zero_grad()
            loss = call(x_of(seed, (5, 4, 6)[seed]).requires_grad_()).square().mean()
            loss.backward()
            optimizer.step()
            run.see("loss and generator", loss, torch.get_rng_state())
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


@pytest.mark.parametrize("reentrant", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings(GRADIENT_OF_NO_LEAF)
def test_a_checkpoint_around(reentrant: bool, swap_dir: Path) -> None:
    """The compiled model runs again while the backward of what is around it is under way."""

    def loop(run: Run) -> None:
        model = nn.Sequential(*(Dropping() for _ in range(4)))
        call, optimizer = run.compile(model), adamw(model.parameters())
        for seed in range(3):
            optimizer.zero_grad()
            x = x_of(seed).requires_grad_()
            twice = checkpoint(
                call, checkpoint(call, x, use_reentrant=reentrant).tanh(), use_reentrant=reentrant
            )
            loss = twice.square().mean()
            loss.backward()
            optimizer.step()
            run.see("loss, generator and gradient", loss, torch.get_rng_state(), x.grad)
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


@pytest.mark.slow
@pytest.mark.filterwarnings(GRADIENT_OF_NO_LEAF)
def test_parts_compiled_one_by_one_in_checkpoints(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        parts = [Layers(3), Layers(3)]
        calls = [run.compile(each) for each in parts]
        optimizer = adamw(each for part in parts for each in part.parameters())
        for seed in range(3):
            optimizer.zero_grad()
            x = x_of(seed).requires_grad_()
            loss = checkpoint_sequential(calls, 2, x, use_reentrant=False).square().mean()
            loss.backward()
            optimizer.step()
            run.see("loss", loss)
            for part in parts:
                run.see_all(part, optimizer)

    check_loop(loop, swap_dir)
