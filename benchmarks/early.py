"""Time iterations whose updates begin while backward runs against the same without.

    python benchmarks/early.py --folder swap
    python benchmarks/early.py --folder swap --million 50 --rows 512 --budget 256MiB

Two copies of a stack of linear layers train side by side, iteration by iteration in turn:
parameters, gradients and states rest in a file, and only one of them has ``early_update``.
Printed are the seconds of forward, backward and step, medians of the rounds, the ratio of the
iterations, and what became of the early updates.  Both end with the same bits, which is checked.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bar import interval, ratios
from torch import Tensor, nn

import zcompile

WIDTH = 1024
PARTS = ("forward", "backward", "step")


class Side:
    """One of both trainings."""

    def __init__(self, folder: Path, million: int, rows: int, budget: str, *, early: bool) -> None:
        torch.manual_seed(0)
        per_layer = 8 * WIDTH * WIDTH
        self.model = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
                for _ in range(max(1, million * 10**6 // per_layer))
            )
        )
        self._rows = rows
        options: Any = {
            "compute": "eager",
            "device_budget": budget,
            "nvme_dir": folder,
            "place": dict.fromkeys(("parameters", "gradients", "optimizer"), "nvme"),
            "early_update": early,
        }
        self._compiled: Any = torch.compile(self.model, backend="zinf", options=options)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.seconds: list[tuple[float, ...]] = []

    def iterate(self, number: int) -> None:
        self.seconds.append(tuple(self._parts(number)))

    def _parts(self, number: int) -> Iterator[float]:
        self._optimizer.zero_grad()
        batch = torch.randn(self._rows, WIDTH, generator=torch.Generator().manual_seed(number))
        began = time.perf_counter()
        loss: Tensor = self._compiled(batch).square().mean()
        yield (forward := time.perf_counter()) - began
        loss.backward()
        yield (backward := time.perf_counter()) - forward
        self._optimizer.step()
        yield time.perf_counter() - backward


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the files are made; default: temporary")
    parser.add_argument("--million", type=int, default=50, help="parameters, in millions")
    parser.add_argument("--rows", type=int, default=256, help="rows of a batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", default="256MiB")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        sides: dict[str, Side] = {}
        for name, early in (("as always", False), ("early", True)):
            torch.compiler.reset()
            sides[name] = Side(
                Path(folder) / name.replace(" ", "_"),
                asked.million,
                asked.rows,
                asked.budget,
                early=early,
            )
            for number in range(4):  # makes states, and proves what is foretold
                sides[name].iterate(number)
        for round_number in range(asked.rounds):
            for side in list(sides.values())[:: 1 if round_number % 2 else -1]:
                side.iterate(4 + round_number)
        report(sides, asked.rounds)


def report(sides: dict[str, Side], rounds: int) -> None:
    """Print what was measured, and check that both sides came to the same."""
    for name, side in sides.items():
        parts = zip(*side.seconds[-rounds:], strict=True)
        told = ", ".join(
            f"{part} {statistics.median(each):.3f} s"
            for part, each in zip(PARTS, parts, strict=True)
        )
        print(f"{name:10} {told}")
    as_always, early = ([sum(each) for each in side.seconds[-rounds:]] for side in sides.values())
    each = ratios(as_always, early)
    low, high = interval(each)
    print(f"iteration as always / early: {statistics.median(each):.3f} ({low:.3f} to {high:.3f})")
    print("parameters:", zcompile.stats(sides["early"].model).early_updates)
    pairs = zip(*(side.model.parameters() for side in sides.values()), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs), "the bits differ"


if __name__ == "__main__":
    main()
