"""What forward saves for backward stays autograd's own: checked, packed and freed as ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from tests.e2e.nets import WIDTH, Net, made, optimizer_of, step, x_of
from tests.e2e.sides import copies
from tests.mechanisms.at_home import check_training


class Shows(nn.Module):
    """Returns what its backward needs as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.first(x))
        return hidden, self.last(hidden)


def test_an_output_that_is_saved_and_changed_is_noticed(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        for _ in range(2):
            hidden, result = call(x_of(0))
            hidden.detach().mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.sum().backward()
        hidden, result = call(x_of(0))
        hidden.data.mul_(2)  # behind autograd's back: what is saved changes, as in plain PyTorch
        result.sum().backward()
        return copies(model)

    check_training(lambda: made(Shows), train, swap_dir)


def compressed(saved: Tensor) -> Tensor:
    return saved.double() if saved.is_floating_point() else saved.clone()


def restored(packed: Tensor) -> Tensor:
    return packed.float() if packed.is_floating_point() else packed


HOOKS: dict[str, Callable[[], Any]] = {
    "clone": lambda: saved_tensors_hooks(Tensor.clone, lambda saved: saved),
    "compress": lambda: saved_tensors_hooks(compressed, restored),
    "save_on_cpu": save_on_cpu,
}


@pytest.mark.parametrize("hooks", HOOKS.values(), ids=HOOKS)
def test_hooks_that_pack_what_is_saved(hooks: Callable[[], Any], swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer, seen = optimizer_of(model), list[Tensor]()
        for seed in range(2):
            with hooks():
                seen += step(call, model, optimizer, seed)
            seen += step(call, model, optimizer, seed + 10)
        return seen

    check_training(lambda: made(Net), train, swap_dir)


class Odd(nn.Module):
    """Saves whole numbers, numbers without dimensions and sizes, besides activations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, words: Tensor, at: Tensor, factor: float) -> Tensor:
        x = self.embed(words) * self.scale
        peak = x.detach().abs().max()
        best = x.sum(-1).argmax(1)
        chosen = x[torch.arange(len(words)), best] + x.index_select(1, at.view(1)).squeeze(1)
        result: Tensor = torch.tanh(self.layer(chosen)) / peak * (factor * words.shape[1])
        return result


@pytest.mark.parametrize("dynamic", [False, True])
def test_numbers_and_sizes_are_saved_too(dynamic: bool, swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        seen: list[Tensor] = []
        for time in (3, 5, 4):
            words = torch.arange(2 * time).view(2, time) % 11
            call(words, torch.tensor(1), 0.5).square().sum().backward()
            seen += copies(model)
        return seen

    check_training(lambda: made(Odd), train, swap_dir, dynamic=dynamic)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(WIDTH, WIDTH)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = torch.tanh(self.trunk(x))
        return [head(x) for head in self.heads]


def test_two_heads_are_walked_one_after_the_other(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        seen: list[Tensor] = []
        for seed in range(2):
            first, second = call(x_of(seed))
            first.sum().backward(retain_graph=True)
            # What a compiled backward has nothing for gets zeros, whichever backend made it.
            pairs = [(each, each.grad) for each in model.parameters()]
            seen += [torch.zeros_like(p) if g is None else g.clone() for p, g in pairs]
            second.square().sum().backward()
            seen += copies(model)
        return seen

    check_training(lambda: made(TwoHeads), train, swap_dir)
