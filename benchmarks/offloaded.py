"""Compare fine-tuning SmolLM2-135M with a quarter of its states on the device with all of them.

    python benchmarks/offloaded.py --folder swap --compute eager
    python benchmarks/offloaded.py --folder swap --compute inductor --clip zinf

Two copies of the model are trained in turn on the same batches by the same kernels, one without a
budget, one with a quarter of the bytes of its parameters, gradients and Adam's states; which goes
first alternates.  Beside them the disk is measured: what an iteration moves, at that speed, is the
other thing that an iteration cannot be faster than.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from bar import Bar
from torch import nn

import zcompile
from zcompile.bench.effort import WHOLE
from zcompile.bench.files import Rig, rigged
from zcompile.demo.job import Job
from zcompile.demo.loop import Batch
from zcompile.demo.packages import find_weights, stay_offline
from zcompile.runtime.file_io import FileIO, choose
from zcompile.runtime.ledger import Channel

STATES = 4
"""Parameters, gradients and Adam's two states weigh the same."""

WARM_UP = 4
"""After so many iterations updates may begin early."""

Clip = Callable[[Sequence[nn.Parameter], float], Any]

CLIPS: dict[str, tuple[Clip | None, Clip | None]] = {
    "none": (None, None),
    "stock": (nn.utils.clip_grad_norm_, nn.utils.clip_grad_norm_),
    "zinf": (nn.utils.clip_grad_norm_, zcompile.clip_grad_norm_),
}
"""How gradients are clipped without a budget, and with one."""


@dataclass(frozen=True)
class Side:
    """One copy of the model in training."""

    call: Callable[..., Any]
    parameters: Sequence[nn.Parameter]
    optimizer: torch.optim.Optimizer
    clip: Clip | None

    def iterate(self, batch: Batch) -> tuple[float, float]:
        """Train by one iteration; return its seconds and its loss."""
        start = perf_counter()
        loss = self.call(**batch, use_cache=False).loss
        loss.backward()
        if self.clip is not None:
            self.clip(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return perf_counter() - start, loss.item()


def side_of(model: nn.Module, options: dict[str, Any], clip: Clip | None) -> Side:
    """Return ``model`` compiled under ``options``, with an optimizer."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=Job().learning_rate)
    return Side(torch.compile(model, backend="zinf", options=options), parameters, optimizer, clip)


def moved_s(side: Side, rig: Rig) -> float:
    """Return what the bytes of the last iteration take: the longer of the two directions."""
    moved = zcompile.stats(side.call).iterations[-1].moved_bytes
    io = choose(FileIO.AUTO).io
    return max(
        moved[channel] * rig.whole(io, write=write)() / rig.nbytes
        for channel, write in ((Channel.NVME_READ, False), (Channel.NVME_WRITE, True))
    )


def parse() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "zinf-swap")
    parser.add_argument("--compute", choices=("eager", "inductor"), default="inductor")
    parser.add_argument("--clip", choices=sorted(CLIPS), default="none")
    parser.add_argument("--early", action="store_true", help="with early_update=True")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Train both in turn and print medians and the ratio beside its bar."""
    asked = parse()
    asked.folder.mkdir(exist_ok=True)
    torch.set_num_threads(asked.threads)
    stay_offline()
    pretrained = import_module("zcompile.demo.pretrained")
    weights = find_weights()
    job = Job(steps=asked.rounds, batch=asked.batch, sequence=asked.sequence)
    models: list[nn.Module] = [pretrained.load_model(weights) for _ in range(2)]
    state_bytes = STATES * sum(each.nbytes for each in models[0].parameters())
    tight = {
        "device_budget": state_bytes // 4,
        "nvme_dir": asked.folder,
        "early_update": asked.early,
    }
    clips = CLIPS[asked.clip]
    resident = side_of(models[0], {"compute": asked.compute}, clips[0])
    offloaded = side_of(models[1], {"compute": asked.compute, **tight}, clips[1])
    batches = cycle(pretrained.read_batches(weights, job))
    found: dict[str, list[float]] = {"resident": [], "offloaded": [], "bytes": []}
    with rigged([asked.folder], WHOLE) as rig:
        for number in range(-WARM_UP, asked.rounds):
            batch = next(batches)
            sides = {"resident": resident, "offloaded": offloaded}
            losses: set[float] = set()
            for name in sorted(sides, reverse=number % 2 == 1):
                seconds, loss = sides[name].iterate(batch)
                losses.add(loss)
                found[name].append(seconds)
            found["bytes"].append(moved_s(offloaded, rig))
            print(f"{number:3}: losses {'equal' if len(losses) == 1 else losses}", flush=True)
    counted = {name: seconds[WARM_UP:] for name, seconds in found.items()}
    for name, seconds in counted.items():
        print(f"{name:10} {median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")
    ratios = [
        mine / max(all_there, moving)
        for mine, all_there, moving in zip(
            counted["offloaded"], counted["resident"], counted["bytes"], strict=True
        )
    ]
    early = ", early" if asked.early else ""
    what = (
        f"a quarter of the states ({asked.compute}, clip {asked.clip}{early}) / resident or bytes"
    )
    Bar(what, 1.1, at_least=False).show(ratios)


if __name__ == "__main__":
    main()
