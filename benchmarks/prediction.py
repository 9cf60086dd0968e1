"""What a forecast says beside what then happens: time of an iteration, and peak bytes.

    zinf bench                        # first: measures this machine, which is called "here"
    python benchmarks/prediction.py --folder swap

Small models are trained within tight and ample budgets.  For each one line: the seconds of an
iteration as foretold before anything runs, as planned once kernels have been measured in the
first iterations, and the median of those that follow; and the most device bytes as planned and
as the ledger counts them.  Each is a process of its own.  The machine should be idle.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from layers import Layers
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import zcompile
from zcompile.forecasting.answer import Forecast
from zcompile.ir import Tier

REPLAN_AFTER = 3

WARM_UP = REPLAN_AFTER + 1

TIME_BAR, PEAK_BAR = 0.15, 0.05


@dataclass(frozen=True, slots=True)
class Case:
    """A model, what makes its inputs, and how it is called for its loss."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    loss: Callable[[Any, Any], Tensor]


def llama() -> nn.Module:
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=10,
        num_attention_heads=8,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    config = GPT2Config(n_layer=8, n_embd=512, n_head=8, vocab_size=8192, use_cache=False)
    return GPT2LMHeadModel(config)


def tokens() -> dict[str, Tensor]:
    words = torch.zeros(4, 128, dtype=torch.int64)
    return {"input_ids": words, "labels": words}


def activations() -> tuple[Tensor, Tensor]:
    return torch.ones(8, 64, 512), torch.zeros(8, 64, 512)


CASES = (
    Case("layers", lambda: Layers(8, 512), activations, lambda m, x: m(*x)),
    Case("llama", llama, tokens, lambda m, x: m(**x).loss),
    Case("gpt2", gpt2, tokens, lambda m, x: m(**x).loss),
)

SHARES = (0.25, 0.6, None)
"""Device budgets, as shares of all states and of the room that activations take; ``None``: all."""


def foretold(case: Case, options: dict[str, Any]) -> Forecast:
    with torch.device("meta"):
        model, inputs = case.make(), case.inputs()
    return zcompile.forecast(model, inputs, {**options, "target": "here"}, "here")


@dataclass(frozen=True, slots=True)
class Trained:
    """Seconds of an iteration, median and as planned by then; the peaks counted and planned."""

    seconds: float
    planned_s: float
    peak_bytes: int
    planned_bytes: int


def trained(case: Case, options: dict[str, Any], iterations: int) -> Trained:
    """Train, with plans that go by what kernels took, and compare."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = case.make()
    given = {**options, "target": "here", "replan_after": REPLAN_AFTER}
    compiled: Any = torch.compile(model, backend="zinf", options=given)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = case.inputs()
    took: list[float] = []
    for _ in range(WARM_UP + iterations):
        start = time.perf_counter()
        case.loss(compiled, inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - start)
    stats = zcompile.stats(compiled)
    peak = stats.total.peak_bytes[Tier.DEVICE]
    seconds = median(took[WARM_UP:])
    return Trained(seconds, stats.planned_seconds or 0.0, peak, stats.planned_peak_bytes)


@dataclass(frozen=True, slots=True)
class Compared:
    """What a forecast and then the plan said of one case, and what was found."""

    budget: int
    told: Forecast
    found: Trained | None


def compared(at: int, share: float | None, folder: str, iterations: int, threads: int) -> Compared:
    """Foretell and train the case at ``at``; runs in a process of its own."""
    torch.set_num_threads(threads)
    case = CASES[at]
    base: dict[str, Any] = {"nvme_dir": folder, "compute": "eager"}
    told = foretold(case, {**base, "device_budget": "8GiB"})
    budget = 8 << 30
    if share is not None:
        budget = int(share * told.peak_bytes[Tier.DEVICE])
        told = foretold(case, {**base, "device_budget": budget})
    if told.timing is None:
        return Compared(budget, told, None)
    return Compared(budget, told, trained(case, {**base, "device_budget": budget}, iterations))


def shown(name: str, each: Compared) -> bool:
    """Print a line; say whether it is within the bars."""
    told, found = each.told, each.found
    if told.timing is None or found is None:
        print(f"{name:8} {each.budget >> 20:>4} MiB {told.why_not or told.untimed}", flush=True)
        return False
    said, peak = found.planned_bytes, found.peak_bytes
    off, over = found.planned_s / found.seconds - 1, said / peak - 1
    print(
        f"{name:8} {each.budget >> 20:>4} MiB {told.timing.seconds:>8.3f}s"
        f" {found.planned_s:>8.3f}s {found.seconds:>8.3f}s {off:>+7.1%}"
        f" {said / 2**20:>10.1f} MiB {peak / 2**20:>5.1f} MiB {over:>+7.1%}",
        flush=True,
    )
    return abs(off) <= TIME_BAR and 0 <= over <= PEAK_BAR


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    head = f"{'model':8} {'budget':>8} {'foretold':>9} {'planned':>9} {'measured':>9} {'':>7}"
    print(f"{head} {'peak planned':>14} {'counted':>9} {'':>7}")
    # A process for each: a budget sets the allocator of a process, for those that follow too.
    fresh = ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1)
    with fresh:
        missed = 0
        for (at, case), share in product(enumerate(CASES), SHARES):
            how = str(given.folder), given.iterations, given.threads
            asked = fresh.submit(compared, at, share, *how)
            missed += not shown(case.name, asked.result())
    print(f"{missed} outside the bars: time within 15 %, peak within 5 % and never below")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
