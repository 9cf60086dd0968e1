"""Compare ways to do without the memory of activations: moving them, and making them again.

    python benchmarks/recomputing.py --folder swap
    python benchmarks/recomputing.py --folder swap --tokens 1024 --compute inductor

A small transformer with long sequences is trained by the same kernels without a budget, and in the
smallest budgets of each way: keeping everything, sending it to files, making it again without
any files, and both.  Each runs some iterations in turn with the others; the median and the most
bytes of a row are printed, and whether the losses are those of the first row, bit for bit.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import zcompile
from zcompile.ir import Tier

WARM_UP = 2


class Block(nn.Module):
    """Attention and a gated layer, both behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (
            each.view(shape).transpose(1, 2) for each in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norms[1](x)
        result: Tensor = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        return result


@dataclass
class Row:
    """One way in training: what it is called, its budget, and what it took so far."""

    name: str
    options: dict[str, Any]
    model: nn.Module
    call: Callable[[Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    seconds: list[float]
    losses: list[float]

    def iterate(self, x: Tensor) -> None:
        start = perf_counter()
        loss = self.call(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(perf_counter() - start)
        self.losses.append(loss.item())


def model_of(args: argparse.Namespace) -> nn.Module:
    """Return the model, the same numbers each time."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(args.width, args.width // 64) for _ in range(args.layers)))


def row_of(name: str, args: argparse.Namespace, options: dict[str, Any]) -> Row:
    """Return a way that trains under ``options``."""
    model = model_of(args)
    options = {"compute": args.compute, **options}
    call: Any = torch.compile(model, backend="zinf", options=options)
    return Row(name, options, model, call, torch.optim.AdamW(model.parameters()), [], [])


def smallest_budget(args: argparse.Namespace, x: Tensor, options: dict[str, Any]) -> int:
    """Return the smallest budget in which the model trains with AdamW under ``options``."""
    try:
        row_of("", args, {**options, "device_budget": "64KiB"}).iterate(x)
    except zcompile.BudgetError as error:
        torch.compiler.reset()
        return error.smallest_bytes
    raise AssertionError("64 KiB are never enough")


def rows_of(args: argparse.Namespace, x: Tensor) -> list[Row]:
    """Return all ways, each in a budget 5 % above the smallest, the first without one."""
    files = {"nvme_dir": args.folder}
    states = {"parameters": "device", "gradients": "device", "optimizer": "device"}
    ways: dict[str, dict[str, Any]] = {
        "all kept": {"recompute": "never"},
        "made again": {},
        "moved": {**files, "recompute": "never", "place": states},
        "moved or made again": {**files, "place": states},
        "all states moved too": {**files},
    }
    found = [row_of("without a budget", args, {"recompute": "never"})]
    for name, options in ways.items():
        budget = smallest_budget(args, x, options) * 105 // 100
        found.append(row_of(name, args, {**options, "device_budget": budget}))
    return found


def printed(row: Row, first: Row) -> str:
    """Return a line of the table for ``row``."""
    stats = zcompile.stats(row.call)
    took, plain = (median(each.seconds[WARM_UP:]) for each in (row, first))
    budget = row.options.get("device_budget")
    peak = stats.total.peak_bytes[Tier.DEVICE] / 2**20
    same = "same losses" if row.losses == first.losses else "OTHER LOSSES"
    return (
        f"{row.name:22} {'' if budget is None else f'{budget / 2**20:.1f} MiB':>11} "
        f"{peak:8.1f} MiB {stats.made_again_bytes / 2**20:8.1f} MiB "
        f"{took:8.3f} s {took / plain:6.2f}  {same}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=None, help="where files go; by default a temporary one")
    parser.add_argument("--compute", choices=("eager", "inductor"), default="eager")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--iterations", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args.folder = args.folder or folder
        x = torch.randn(2, args.tokens, args.width, generator=torch.Generator().manual_seed(1))
        rows = rows_of(args, x)
        for number in range(WARM_UP + args.iterations):
            for row in rows if number % 2 else reversed(rows):
                row.iterate(x)
        print(f"{'':22} {'budget':>11} {'peak':>12} {'made again':>12} {'iteration':>10}  ratio")
        for row in rows:
            print(printed(row, rows[0]))


if __name__ == "__main__":
    main()
