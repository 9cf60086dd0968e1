"""Small models of the kinds that people train, most of their bytes in many equal layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention over (batch, time, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return result


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        result: Tensor = x + self.dropout(self.down(functional.gelu(self.up(self.norm_2(x)))))
        return result


class LanguageModel(nn.Module):
    """Words (batch, time) to scores; the head is tied to the embedding."""

    def __init__(
        self,
        width: int = 32,
        depth: int = 4,
        words: int = 61,
        *,
        heads: int = 4,
        max_time: int = 16,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.place = nn.Parameter(torch.randn(max_time, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words) + self.place[: words.shape[1]]
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x))
        return result


class ConvNet(nn.Module):
    """Residual convolutions with batch norm, whose statistics are buffers changed in place."""

    def __init__(self, channels: int = 24, depth: int = 6, classes: int = 7) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.convs = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(depth))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + functional.relu(norm(conv(x)))
        result: Tensor = self.head(x.mean((2, 3)))
        return result


class Recurrent(nn.Module):
    """Stacked LSTM cells written out, all sizes odd: every weight is read at every time step."""

    def __init__(self, inputs: int = 13, hidden: int = 37, layers: int = 4) -> None:
        super().__init__()
        sizes = [inputs, *[hidden] * (layers - 1)]
        self.from_input = nn.ModuleList(nn.Linear(size, 4 * hidden) for size in sizes)
        self.from_state = nn.ModuleList(
            nn.Linear(hidden, 4 * hidden, bias=False) for _ in range(layers)
        )
        self.out = nn.Linear(hidden, 3)
        self.hidden = hidden

    def forward(self, x: Tensor) -> Tensor:
        for inward, onward in zip(self.from_input, self.from_state, strict=True):
            h = c = x.new_zeros(x.shape[0], self.hidden)
            outputs: list[Tensor] = []
            for step in x.unbind(1):
                i, f, g, o = (inward(step) + onward(h)).chunk(4, 1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                outputs.append(h)
            x = torch.stack(outputs, 1)
        result: Tensor = self.out(x[:, -1])
        return result


def llama() -> nn.Module:
    """Return a Llama of four layers: rotary positions, grouped heads, gated MLPs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config: Any = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=88,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        use_cache=False,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def bert() -> nn.Module:
    """Return a BERT of three layers with all its dropouts."""
    from transformers import BertConfig, BertForMaskedLM

    config: Any = BertConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=32,
    )
    return BertForMaskedLM(config)
