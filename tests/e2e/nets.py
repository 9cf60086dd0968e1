"""A net of every kind of parameter, and one iteration of its training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from tests.e2e.sides import copies

WIDTH = 32


class Net(nn.Module):
    """Three layers, the last the first one's weight again, the middle one frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(torch.tanh(self.frozen(torch.tanh(self.first(x)))))
        return result


def x_of(seed: int, batch: int = 3) -> Tensor:
    return torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(seed))


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def loss_of(call: Any, seed: int) -> Any:
    return call(x_of(seed)).square().mean()


def optimizer_of(model: nn.Module) -> Optimizer:
    return AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)


def step(call: Any, model: nn.Module, optimizer: Optimizer, seed: int) -> list[Tensor]:
    """Train by one iteration; return all there is to see of it."""
    optimizer.zero_grad()
    loss = loss_of(call, seed)
    loss.backward()
    optimizer.step()
    return copies(model, loss)
