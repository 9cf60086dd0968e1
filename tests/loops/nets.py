"""The nets of the loops, and their usual pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from tests.loops.playing import Run

WIDTH = 64
WORDS = 61

GRADIENT_OF_NO_LEAF = "ignore:The .grad attribute of a Tensor that is not a leaf"
"""What Dynamo hides when it meets an input that was computed, unless warnings are errors."""


class Layers(nn.Module):
    """Linear layers of (width, width) with tanh between them."""

    def __init__(self, depth: int = 4, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Reader(nn.Module):
    """Words (batch, time) through an embedding and layers to scores of words."""

    def __init__(self, words: int = WORDS, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, WIDTH)
        self.body = Layers(depth)
        self.head = nn.Linear(WIDTH, words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(self.embed(words)))
        return result


def x_of(seed: int, batch: int = 5, width: int = WIDTH) -> Tensor:
    return torch.randn(batch, width, generator=torch.Generator().manual_seed(seed))


def words_of(seed: int, batch: int = 2, time: int = 7, words: int = WORDS) -> Tensor:
    return torch.randint(words, (batch, time), generator=torch.Generator().manual_seed(seed))


def square_loss(call: Any, seed: int) -> Any:
    return (call(x_of(seed)) - x_of(seed + 1000)).square().mean()


def word_loss(call: Any, seed: int) -> Any:
    words = words_of(seed)
    scores = call(words[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())


# torch has no types for these.
checkpoint: Any = torch.utils.checkpoint.checkpoint  # pyright: ignore[reportUnknownVariableType]
checkpoint_sequential: Any = (  # pyright: ignore[reportUnknownVariableType]
    torch.utils.checkpoint.checkpoint_sequential
)


def adamw(parameters: Iterable[Any], **more: Any) -> Any:
    given: dict[str, Any] = {"lr": 1e-2, **more}
    return AdamW(parameters, **given)


def step(
    run: Run,
    call: Any,
    model: nn.Module,
    optimizer: Any,
    seed: int,
    loss_of: Any = square_loss,
) -> None:
    """Train by one iteration and show everything."""
    optimizer.zero_grad()
    loss = loss_of(call, seed)
    loss.backward()
    optimizer.step()
    run.see("loss", loss)
    run.see_all(model, optimizer)
