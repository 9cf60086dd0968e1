"""Homes of gradients: one for each parameter and backward, whoever makes, sums or keeps them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tests.e2e.nets import WIDTH, loss_of, made, x_of
from tests.e2e.sides import copies
from tests.mechanisms.at_home import check_in_file, check_training, gradients

Hook = Callable[[Tensor], Tensor | None]

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


def _same(x: Tensor) -> Tensor:
    return x


not_captured: Callable[[Tensor], Tensor] = cast("Any", torch.compiler.disable)(_same)
"""Breaks the graph around it."""


class Twice(nn.Module):
    """One layer, used in two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = not_captured(torch.tanh(self.layer(x)))
        result: Tensor = self.layer(x)
        return result


class Summed(nn.Module):
    """Two parameters whose gradients are the same numbers; autograd would make them one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.linspace(-1, 1, WIDTH * WIDTH))
        self.square = nn.Parameter(torch.linspace(1, 2, WIDTH * WIDTH).view(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.tanh(self.flat.view(WIDTH, WIDTH) + self.square)


def test_gradients_of_two_graphs_are_summed_in_the_file(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        seen: list[Tensor] = []
        for seed in range(2):
            loss_of(call, seed).backward()
            seen += copies(model)
        return seen

    session, model = check_training(lambda: made(Twice), train, swap_dir)
    check_in_file(session, gradients(model))


def test_equal_gradients_of_two_parameters_are_two_tensors(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        loss_of(call, 0).backward()
        seen = copies(model)
        loss_of(call, 1).backward()  # into the first ones: each is added to once
        return seen + copies(model)

    session, model = check_training(lambda: made(Summed), train, swap_dir)
    flat, square = gradients(model)
    check_in_file(session, (flat, square))
    flat.zero_()
    assert square.any()


KEPT: list[Tensor] = []

SHARED = torch.full((WIDTH, WIDTH), 0.5)

HOOKS: dict[str, Hook] = {
    "keeps": KEPT.append,
    "replaces": lambda gradient: gradient * 2,
    "expands": lambda gradient: gradient.mean().expand_as(gradient),
    "turns": lambda gradient: gradient.t().contiguous().t(),
    "shares": lambda _: SHARED,
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_gradients_that_a_hook_has_had_come_home(hook: Hook, swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        weights = [each for each in model.parameters() if each.dim() == 2]
        for weight in weights:
            cast("Any", weight).register_hook(hook)
        optimizer = torch.optim.AdamW(model.parameters())
        seen: list[Tensor] = []
        for seed in range(2):
            optimizer.zero_grad()
            for more in range(2):
                loss_of(call, 2 * seed + more).backward()
                seen += copies(model)
            optimizer.step()
        return seen + copies(model)

    def two() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    session, model = check_training(lambda: made(two), train, swap_dir)
    KEPT.clear()
    check_in_file(session, gradients(model))


def test_gradients_that_eager_code_makes_come_home(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        seen: list[Tensor] = []
        for seed in range(2):
            decay = sum(each.square().sum() for each in model.parameters())
            (loss_of(call, seed) + decay).backward()
            seen += copies(model)
        return seen

    session, model = check_training(lambda: made(lambda: nn.Linear(WIDTH, WIDTH)), train, swap_dir)
    check_in_file(session, gradients(model))


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_backward_that_could_be_recorded(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        seen: list[Tensor] = []
        for seed in range(2):
            loss_of(call, seed).backward(create_graph=True)
            seen += copies(model)
        model.zero_grad()
        return seen

    check_training(lambda: made(lambda: nn.Linear(WIDTH, WIDTH)), train, swap_dir)


def test_gradients_of_a_few_inputs(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        x = x_of(0).requires_grad_()
        weight = model.get_parameter("weight")
        found = torch.autograd.grad(call(x).square().sum(), (weight, x))
        assert not gradients(model)
        return [each.clone() for each in found]

    check_training(lambda: made(lambda: nn.Linear(WIDTH, WIDTH)), train, swap_dir)


def test_forward_and_backward_within_a_hook(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        seen: list[Tensor] = []

        def within(gradient: Tensor) -> None:
            if len(seen) == 0:
                seen.append(gradient.clone())
                x = x_of(5).requires_grad_()
                with torch.enable_grad():
                    (inner,) = torch.autograd.grad(call(x).sum(), x)
                seen.append(inner.clone())

        cast("Any", model.get_parameter("0.weight")).register_hook(within)
        for seed in range(2):
            loss_of(call, seed).backward()
            seen += copies(model)
        return seen

    def two() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    check_training(lambda: made(two), train, swap_dir)
