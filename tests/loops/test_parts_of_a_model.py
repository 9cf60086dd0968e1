"""Loops that train some of the parameters, or keep averages of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from tests.loops.nets import WIDTH, Layers, adamw, square_loss, step, x_of
from tests.loops.playing import Run, check_loop


def test_an_average_by_deepcopy(swap_dir: Path) -> None:
    """The copy is made of a model whose parameters rest in the file, and is evaluated."""

    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters())
        step(run, call, model, optimizer, 0)
        average = copy.deepcopy(model).requires_grad_(False)
        averaged = run.compile(average)
        for seed in range(1, 4):
            step(run, call, model, optimizer, seed)
            with torch.no_grad():
                for own, given in zip(average.parameters(), model.parameters(), strict=True):
                    own.lerp_(given, 0.1)
                run.see("evaluated", averaged(x_of(50)), average(x_of(51)))
            run.see_all(average)

    check_loop(loop, swap_dir)


@pytest.mark.parametrize("multi", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_averaged_model(multi: bool, swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), SGD(model.parameters(), lr=0.1, momentum=0.9)
        rule: dict[str, Any] = {}
        if multi:
            rule["multi_avg_fn"] = get_ema_multi_avg_fn(0.9)
        average = AveragedModel(model, **rule)
        schedule = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
        for seed in range(3):
            step(run, call, model, optimizer, seed)
            average.update_parameters(model)
            schedule.step()
            with torch.inference_mode():
                run.see("evaluated", average(x_of(50)))
        run.see("averaged", *average.parameters())
        model.load_state_dict(average.module.state_dict())
        step(run, call, model, optimizer, 9)

    check_loop(loop, swap_dir)


def test_layers_are_frozen_and_thawed(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters(), weight_decay=0.1)
        for seed in range(8):
            frozen = {0: 2, 1: 2, 2: 4, 3: 0, 4: 0, 5: 3}.get(seed, 1)
            for at, layer in enumerate(model.layers):
                layer.requires_grad_(at >= frozen)
            if frozen < 4:
                step(run, call, model, optimizer, seed)
            else:
                run.see("evaluated", call(x_of(seed)))
                run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


def test_a_new_optimizer_for_what_was_thawed(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        model.layers[:3].requires_grad_(False)
        call = run.compile(model)
        optimizer: Optimizer = SGD(model.layers[3].parameters(), lr=0.1)
        for seed in range(2):
            step(run, call, model, optimizer, seed)
        model.layers[1].requires_grad_(True)
        optimizer.add_param_group({"params": list(model.layers[1].parameters()), "momentum": 0.9})
        for seed in range(2, 4):
            step(run, call, model, optimizer, seed)
        model.requires_grad_(True)
        optimizer = AdamW(model.parameters(), lr=1e-2)
        for seed in range(4, 6):
            step(run, call, model, optimizer, seed)

    check_loop(loop, swap_dir)


class Adapted(nn.Module):
    """A frozen linear layer with a trained product of two thin matrices beside it."""

    def __init__(self, base: nn.Module, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, WIDTH) * 0.1)
        self.up = nn.Parameter(torch.zeros(WIDTH, rank))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return result


@pytest.mark.parametrize("all_given", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_adapters_on_a_frozen_base(all_given: bool, swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers(5)
        for at, layer in enumerate(model.layers):
            model.layers[at] = Adapted(layer)
        given = [each for each in model.parameters() if all_given or each.requires_grad]
        call, optimizer = run.compile(model), adamw(given, weight_decay=0.1)
        for seed in range(3):
            step(run, call, model, optimizer, seed)
        for layer in model.layers:  # merged into the base, and trained on
            assert isinstance(layer, Adapted)
            assert isinstance(layer.base, nn.Linear)
            layer.base.weight.data += layer.up.detach() @ layer.down.detach()
            nn.init.zeros_(layer.up)
        step(run, call, model, optimizer, 4)

    check_loop(loop, swap_dir)


@pytest.mark.parametrize("kind", [AdamW, pytest.param(SGD, marks=pytest.mark.slow)])
def test_each_parameter_is_updated_in_backward(
    kind: Callable[..., Optimizer], swap_dir: Path
) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call = run.compile(model)
        given = dict(model.named_parameters())
        optimizers = {name: kind([each], lr=1e-2) for name, each in given.items()}
        gradients: dict[str, Tensor] = {}

        def update(name: str, parameter: Tensor) -> None:
            assert parameter.grad is not None
            gradients[name] = parameter.grad.clone()
            optimizers[name].step()
            optimizers[name].zero_grad()

        for name, each in given.items():
            each.register_post_accumulate_grad_hook(partial(update, name))
        for seed in range(3):
            loss = square_loss(call, seed)
            loss.backward()
            run.see("loss", loss)
            # A compiled backward gives all gradients at once: the hooks come in another order.
            run.see("gradients", *(gradients[name] for name in given))
            run.see_all(model, *optimizers.values())

    check_loop(loop, swap_dir)


def test_hooks_change_and_replace_gradients(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters())
        weights: list[Any] = [each.weight for each in model.layers]
        first, second, third, _ = weights
        kept: list[Tensor] = []

        def clamp(parameter: Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.clamp_(-1e-3, 1e-3)

        def halve(gradient: Tensor) -> Tensor:
            return gradient * 0.5

        first.register_hook(halve)
        second.register_hook(kept.append)
        third.register_post_accumulate_grad_hook(clamp)
        for seed in range(3):
            step(run, call, model, optimizer, seed)
        run.see("kept", *kept)

    check_loop(loop, swap_dir)
