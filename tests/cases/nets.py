"""Small nets that cases share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 64
"""Of everything: a matrix has 16 KiB, a fifth of what the smallest update needs."""


class Stack(nn.Module):
    """Layers of one width; a loop of our own, since Dynamo leaves frames of `nn.Sequential`."""

    def __init__(self, depth: int = 4, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Heads(nn.Module):
    """A trunk and two heads; returns what both say, and what the trunk does."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Stack()
        self.a, self.b = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.trunk(x)
        return self.a(h), self.b(h), h


class Tied(nn.Module):
    """The last matrix is the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.body = Stack()
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.body(self.first(x)))
        return result
