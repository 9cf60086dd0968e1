"""A small model, its inputs, and iterations of its training, for scripts that run both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from tests.e2e.sides import copies

WIDTH = 64

MakeOptimizer = Callable[[nn.Module], Optimizer]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.tanh(self.up(x)))
        return y


def made(kind: Callable[[], nn.Module] = Net) -> Any:
    torch.manual_seed(0)
    return kind()


def x_of(seed: int = 0) -> Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed))


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=1e-2)


def iterations(call: Any, model: nn.Module, optimizer: Optimizer, number: int = 3) -> list[Tensor]:
    """Train; return all there is to see after each iteration."""
    seen: list[Tensor] = []
    for seed in range(number):

        def closure(seed: int = seed) -> Any:
            optimizer.zero_grad()
            loss = call(x_of(seed)).square().mean()
            loss.backward()
            return loss

        loss: Any = optimizer.step(closure)
        seen += copies(model, loss)
    return seen
