"""Measure what the backend costs where nothing has to move: a training iteration, all resident.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --batch 2 --time 64 --pairs 25

Two equal models of transformer layers are trained in turn, one compiled by this backend with
ample budgets, one by Inductor alone: forward, backward, AdamW.  Which goes first alternates.
Where others use the machine as well, the time of processors says more than the clock.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from layers import Layers, data
from torch import Tensor, nn

PHASES = ("forward", "backward", "update", "iteration")
WARM_UP = 3
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Trained:
    """One model in training."""

    call: Callable[[Tensor, Tensor], Any]
    optimizer: torch.optim.Optimizer

    def iterate(self, x: Tensor, target: Tensor, now: Callable[[], float]) -> list[float]:
        """Train by one iteration; return the seconds of each phase, and of all."""
        moments = [now()]
        loss = self.call(x, target)
        moments.append(now())
        loss.backward()
        moments.append(now())
        self.optimizer.step()
        self.optimizer.zero_grad()
        moments.append(now())
        spans = [after - before for before, after in pairwise(moments)]
        return [*spans, moments[-1] - moments[0]]


def trained(layers: int, width: int, compile_model: Callable[[nn.Module], Any]) -> Trained:
    """Return a model with the same weights each time, compiled by ``compile_model``."""
    torch.manual_seed(0)
    model = Layers(layers, width)
    return Trained(compile_model(model), torch.optim.AdamW(model.parameters(), lr=1e-4))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the ratio of the medians, and where 95 % of it lie if the pairs are drawn anew."""
    pairs = list(zip(ours, theirs, strict=True))
    draw = random.Random(0)
    drawn = sorted(of_medians(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    low, high = drawn[RESAMPLES // 40], drawn[-RESAMPLES // 40]
    return f"{of_medians(pairs):.3f} ({low:.3f} to {high:.3f})"


def of_medians(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the ratio of the medians of the two sides of ``pairs``."""
    return median(ours for ours, _ in pairs) / median(theirs for _, theirs in pairs)


def parse() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--time", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--clock", action="store_true", help="by the clock, not by processors")
    return parser.parse_args()


def main() -> None:
    """Train both in turn and print medians and ratios."""
    asked = parse()
    torch.set_num_threads(1)
    x, target = data(asked.batch, asked.time, asked.width)
    now = perf_counter if asked.clock else process_time
    with tempfile.TemporaryDirectory(prefix="zinf-", dir=Path.cwd()) as folder:
        options = {"device_budget": "64GiB", "nvme_dir": folder}
        sides = {
            "zinf": trained(
                asked.layers,
                asked.width,
                lambda model: torch.compile(model, backend="zinf", options=options),
            ),
            "inductor": trained(asked.layers, asked.width, torch.compile),
        }
        for side in sides.values():
            for _ in range(WARM_UP):
                side.iterate(x, target, now)
        found: dict[str, list[list[float]]] = {name: [] for name in sides}
        for pair in range(asked.pairs):
            for name in sorted(sides, reverse=pair % 2 == 1):
                found[name].append(sides[name].iterate(x, target, now))
    for at, phase in enumerate(PHASES):
        ours, theirs = ([each[at] for each in found[name]] for name in ("zinf", "inductor"))
        print(
            f"{phase:<10} zinf {1e3 * median(ours):8.1f} ms, inductor {1e3 * median(theirs):8.1f} "
            f"ms, ratio {ratio(ours, theirs)}"
        )


if __name__ == "__main__":
    main()
