"""The model that cost is measured with: transformer layers of one kind, and their data."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module):
    """A pre-norm transformer layer over (batch, time, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        split = self.qkv(self.norm_1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).reshape(batch, time, width))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm_2(x))))
        return result


class Layers(nn.Module):
    """``depth`` layers and a norm; returns the loss against targets of the input's shape."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads=8) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return functional.mse_loss(self.norm(x), target)


def data(batch: int, time: int, width: int) -> tuple[Tensor, Tensor]:
    """Return an input and a target, each of (batch, time, width)."""
    generator = torch.Generator().manual_seed(1)
    x, target = torch.randn(2, batch, time, width, generator=generator)
    return x, target
