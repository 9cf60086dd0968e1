"""Mixed precision, models of other types, and models whose type changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, AdamW

from tests.loops.nets import Layers, adamw, square_loss, step, x_of
from tests.loops.playing import Run, check_loop


def train_within(run: Run, autocast: torch.autocast, model: nn.Module, steps: int) -> None:
    """Train with forward within ``autocast`` and backward behind it."""
    call, optimizer = run.compile(model), adamw(model.parameters())
    for seed in range(steps):
        optimizer.zero_grad()
        with autocast:
            loss = square_loss(call, seed)
        loss.backward()
        optimizer.step()
        run.see("loss", loss)
        run.see_all(model, optimizer)


@pytest.mark.parametrize("inside", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_autocast_to_bfloat16(inside: bool, swap_dir: Path) -> None:
    class Cast(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=inside):
                return super().forward(x)

    def loop(run: Run) -> None:
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=not inside)
        train_within(run, autocast, Cast(), steps=3)

    check_loop(loop, swap_dir)


@pytest.mark.parametrize("fused", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_autocast_to_float16_with_a_scaler(fused: bool, swap_dir: Path) -> None:
    """The first scale is too large: steps are skipped until it is small enough."""

    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters(), fused=fused)
        scaler = GradScaler("cpu", init_scale=2.0**26, growth_interval=2)
        for seed in range(8):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = square_loss(call, seed)
            scaler.scale(loss).backward()
            if seed % 2:
                scaler.unscale_(optimizer)
                run.see("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            scaler.step(optimizer)
            scaler.update()
            run.see("loss", loss, torch.tensor(scaler.get_scale()))
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        pytest.param(torch.float16, marks=pytest.mark.slow),
        pytest.param(torch.float64, marks=pytest.mark.slow),
    ],
)
def test_a_model_of_another_type(dtype: torch.dtype, swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers().to(dtype)
        call = run.compile(model)
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        for seed in range(3):
            optimizer.zero_grad()
            loss = call(x_of(seed).to(dtype)).square().mean()
            loss.backward()
            optimizer.step()
            run.see("loss", loss)
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)]
)
def test_dropout_in_sixteen_bits(dtype: torch.dtype, swap_dir: Path) -> None:
    """Its scale is no number of these types, and is rounded where eager code rounds it."""

    class Dropping(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(super().forward(x), 0.1)

    def loop(run: Run) -> None:
        train_within(run, torch.autocast("cpu", dtype), Dropping(2), steps=2)

    check_loop(loop, swap_dir)


CONVERSIONS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "to": lambda model: model.to(torch.bfloat16),
    "half": lambda model: model.half(),
    "double and back": lambda model: model.double().float(),
}


@pytest.mark.parametrize(
    "how", ["to", *(pytest.param(how, marks=pytest.mark.slow) for how in [*CONVERSIONS][1:])]
)
@pytest.mark.parametrize("anew", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_model_is_converted_in_mid_training(how: str, anew: bool, swap_dir: Path) -> None:
    """The optimizer is made anew, or goes on with states of the type before."""

    def loop(run: Run) -> None:
        model = Layers()
        # Not Adam: it takes no states of another type than the gradients'.
        call, optimizer = run.compile(model), SGD(model.parameters(), lr=0.1, momentum=0.9)
        for seed in range(2):
            step(run, call, model, optimizer, seed)
        CONVERSIONS[how](model)
        if anew:
            optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        for seed in range(2, 4):
            optimizer.zero_grad()
            loss = call(x_of(seed).to(next(model.parameters()).dtype)).square().mean()
            loss.backward()
            run.see_all(model)
            optimizer.step()
            run.see("loss", loss)
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


@pytest.mark.slow
def test_a_state_dict_of_another_type(swap_dir: Path) -> None:
    """States of 32 bits are cast to the type of the parameters when they are loaded."""

    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), AdamW(model.parameters(), lr=1e-2)
        step(run, call, model, optimizer, 0)
        saved = optimizer.state_dict()
        model.bfloat16()
        optimizer = AdamW(model.parameters(), lr=1e-2)
        optimizer.load_state_dict(saved)
        for seed in range(1, 3):
            optimizer.zero_grad()
            loss = call(x_of(seed).bfloat16()).square().mean()
            loss.backward()
            optimizer.step()
            run.see("loss", loss)
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)
