"""Homes belong to memory, not to names: replaced, copied, converted and repeated parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.e2e.nets import WIDTH, loss_of, made, x_of
from tests.e2e.sides import Compile, check_same, copies, in_file
from tests.mechanisms.at_home import check_in_file, check_training
from zcompile.backend import Backend


def layers(depth: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(depth)))


def trained(model: nn.Module, call: Any, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Train by two iterations with a new optimizer."""
    optimizer, seen = torch.optim.AdamW(model.parameters(), lr=1e-2), list[Tensor]()
    for seed in range(2):
        optimizer.zero_grad()
        loss: Any = call(x_of(seed).to(dtype)).float().square().mean()
        loss.backward()
        optimizer.step()
        seen += copies(model, loss)
    return seen


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_equal_blocks_compiled_one_by_one(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        torch.manual_seed(0)
        model = layers()
        calls = nn.Sequential(*(compile_model(block) for block in model))
        return trained(model, calls)

    assert len(check_same(script, swap_dir)) == 3


CONVERSIONS: dict[str, Callable[[nn.Module], object]] = {
    "bfloat16": nn.Module.bfloat16,
    "double": nn.Module.double,
    "to": lambda model: model.to(torch.bfloat16),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_converted_model_comes_home_again(
    convert: Callable[[nn.Module], object], swap_dir: Path
) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        seen = trained(model, call)
        convert(model)
        return seen + trained(model, call, next(model.parameters()).dtype)

    session, model = check_training(lambda: made(layers), train, swap_dir)
    check_in_file(session, model.parameters())


def test_a_copy_of_a_moved_model_is_plain_and_apart(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        seen = trained(model, call)
        other = copy.deepcopy(model)
        for each in other.parameters():
            each.data.mul_(0.5)
        seen += trained(other, other) + copies(model)
        return seen + trained(model, call) + copies(other)

    session, model = check_training(lambda: made(layers), train, swap_dir)
    check_in_file(session, model.parameters())


class Grown(nn.Module):
    """An embedding tied to the head, which gets further words between iterations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, WIDTH)
        self.head = nn.Linear(WIDTH, 13, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.head(torch.tanh(self.embed(words)))
        return result

    def grow(self, num_words: int) -> None:
        """Replace the shared weight, as ``resize_token_embeddings`` does."""
        known = self.embed.weight.detach()
        embed = nn.Embedding(num_words, WIDTH)
        embed.weight.data[: len(known)] = known
        self.embed, self.head.weight, self.head.out_features = embed, embed.weight, num_words


def test_an_embedding_is_resized(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        assert isinstance(model, Grown)
        seen: list[Tensor] = []
        for num_words in (13, 17, 29):
            model.grow(num_words)
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                optimizer.zero_grad()
                call(torch.arange(num_words)).square().mean().backward()
                optimizer.step()
                seen += copies(model)
        return seen

    session, model = check_training(lambda: made(Grown), train, swap_dir)
    check_in_file(session, model.parameters())


def test_writes_past_autograd_between_calls(swap_dir: Path) -> None:
    """An average of the weights, clipping and single elements, all through ``.data``."""

    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        average = [each.detach().clone() for each in model.parameters()]
        seen: list[Tensor] = []
        for seed in range(4):
            optimizer.zero_grad()
            loss_of(call, seed).backward()
            for each in model.parameters():
                assert each.grad is not None
                each.grad.data.clamp_(-1e-3, 1e-3)
            optimizer.step()
            for mean, each in zip(average, model.parameters(), strict=True):
                mean.lerp_(each.data, 0.5)
                each.data.lerp_(mean, 0.1)
                each.data.view(-1)[0] = 5
                each.detach().numpy().reshape(-1)[-1] = seed
            seen.append(call(x_of(20)).detach())
            seen += copies(model, *average)
        return seen

    check_training(lambda: made(layers), train, swap_dir)


def test_an_array_made_before_the_first_call_keeps_the_old_memory(swap_dir: Path) -> None:
    """It is safe, and shows what was there before the move; one made later is the weight."""
    backend, model = Backend(), made(layers)
    weight, before = model.get_parameter("0.0.weight"), copies(model)[0]
    array = weight.detach().numpy()
    trained(model, in_file(model, swap_dir, backend))
    (session,) = backend.sessions(model)
    check_in_file(session, [weight])
    assert torch.equal(torch.from_numpy(array), before)
    array[:] = 0
    assert weight.any()
    weight.detach().numpy()[:] = 0
    assert not weight.any()
