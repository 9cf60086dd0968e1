"""Small models of repeated layers, of one kind and of two, and what they are called with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.fx.graphs import Block, Stack

DEPTH = 9


class Gated(nn.Module):
    """A residual layer that multiplies two products; ``index`` and ``wide`` tell it apart."""

    def __init__(self, width: int, index: int, *, wide: bool) -> None:
        super().__init__()
        self.index = index
        self.wide = wide
        inner = (4 if wide else 2) * width
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        z: Tensor = self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return x + z


class Alternating(nn.Module):
    """A layer of its own, then wide and narrow ones in turn, which share a scale."""

    def __init__(self, width: int = 16, depth: int = 2 * DEPTH) -> None:
        super().__init__()
        first = Block(width)
        rest = (Gated(width, at, wide=at % 2 == 1) for at in range(1, depth))
        self.layers = nn.ModuleList([first, *rest])
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x * self.scale)
        return x


class Counting(nn.Module):
    """Layers that look alike, of which the last ones do something else."""

    def __init__(self, width: int = 16, depth: int = DEPTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            x = layer(x).relu() if at < 3 else layer(layer(x))
        return x


def words(batch: int = 3) -> Tensor:
    return torch.zeros(batch, 5, dtype=torch.int64, device="meta")


def stack() -> tuple[nn.Module, Any]:
    with torch.device("meta"):
        return Stack(32, DEPTH, 100), words()


def alternating() -> tuple[nn.Module, Any]:
    with torch.device("meta"):
        return Alternating(), torch.zeros(4, 16)


def sequential() -> tuple[nn.Module, Any]:
    """Two kinds of layers in turn, in a model that is nothing but their list."""
    layers = [each for _ in range(DEPTH) for each in (nn.Linear(16, 16), nn.GELU())]
    model = nn.Sequential(*layers)
    return model.to("meta"), torch.zeros(4, 16, device="meta")
