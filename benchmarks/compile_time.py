"""Measure what a cold compile takes: the first forward and backward, every cache empty.

    python benchmarks/compile_time.py --layers 24 96 --rounds 3
    python benchmarks/compile_time.py --layers 48 --plain

Each run is a process of its own with an empty cache folder, and Inductor compiles in it instead
of in workers.  The time of processors (its own and that of the C++ compilers it starts) says more
than the clock where others use the machine as well.  Tracing ends when AOTAutograd hands over the
joint graph; all that comes after it, Dynamo's guards included, is "after".  The same iteration once
more, when nothing has to be compiled, is taken off it.  Imports are outside.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from statistics import median
from time import perf_counter
from typing import Any

import torch

BACKENDS = ("zinf", "inductor")
COMPILERS = ("torch._dynamo", "torch._inductor.compile_fx")
"""What the first compilation would import."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds so far, by the clock and on processors."""

    clock: float
    processor: float

    @classmethod
    def now(cls) -> Moment:
        """Return this moment; ended children count, and so do their children."""
        own, children = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
        return cls(
            perf_counter(),
            own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
        )

    def __sub__(self, earlier: Moment) -> Moment:
        return Moment(self.clock - earlier.clock, self.processor - earlier.processor)


@dataclass(frozen=True, slots=True)
class Cold:
    """What one cold compile took."""

    tracing: Moment
    after: Moment
    later: Moment
    """What the same iteration takes when all is compiled; ``after`` is without it."""

    @property
    def processor(self) -> float:
        """All seconds on processors."""
        return self.tracing.processor + self.after.processor

    def __str__(self) -> str:
        return (
            f"{self.processor:7.1f} s on processors: {self.tracing.processor:5.1f} s tracing, "
            f"{self.after.processor:5.1f} s after it ({self.tracing.clock + self.after.clock:.1f} "
            f"s by the clock), without {self.later.processor:.1f} s of running"
        )


def compile_cold(backend: str, layers: int, width: int, swap_dir: str) -> Cold:
    """Compile and run one iteration of a new model in this process."""
    from layers import Layers, data

    for each in COMPILERS:
        import_module(each)
    functorch: Any = import_module("torch._functorch.config")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Layers(layers, width)
    options = {"device_budget": "64GiB", "nvme_dir": swap_dir} if backend == "zinf" else None
    call = torch.compile(model, backend=backend, options=options)
    inputs = data(1, 32, width)
    traced: list[Moment] = []

    def note(joint: Any, _: Any) -> Any:
        traced.append(Moment.now())
        return joint

    start = Moment.now()
    with functorch.patch(joint_custom_pass=note):
        call(*inputs).backward()
    end = Moment.now()
    model.zero_grad()
    again = Moment.now()
    call(*inputs).backward()
    later = Moment.now() - again
    return Cold(traced[0] - start, end - traced[0] - later, later)


def in_own_process(backend: str, layers: int, width: int) -> Cold:
    """Return what a cold compile takes in a process that shares nothing with this one."""
    with tempfile.TemporaryDirectory(prefix="zinf-", dir=Path.cwd()) as folder:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        command = [sys.executable, __file__, "--one", backend, str(layers), str(width), folder]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        )
    found = json.loads(done.stdout.splitlines()[-1])
    return Cold(**{part: Moment(**seconds) for part, seconds in found.items()})


def parse(given: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[24, 48, 96])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=1, help="of which medians are compared")
    parser.add_argument("--plain", action="store_true", help="also torch.compile's default")
    return parser.parse_args(given)


def main(given: Sequence[str]) -> None:
    """Run each depth in a process of its own and print what it took."""
    if given[:1] == ["--one"]:
        backend, layers, width, folder = given[1:]
        cold = compile_cold(backend, int(layers), int(width), folder)
        print(json.dumps(asdict(cold)))
        return
    asked = parse(given)
    found: dict[tuple[str, int], list[Cold]] = {}
    for _ in range(asked.rounds):
        for layers in asked.layers:
            for backend in BACKENDS if asked.plain else BACKENDS[:1]:
                cold = in_own_process(backend, layers, asked.width)
                found.setdefault((backend, layers), []).append(cold)
                print(f"{backend:<9}{layers:4} layers {cold}", flush=True)
    compared(found, asked)


def compared(found: Mapping[tuple[str, int], Sequence[Cold]], asked: argparse.Namespace) -> None:
    """Print ratios of medians: to the other backend, and of the deepest model to the flattest."""
    whole = {of: median(each.processor for each in colds) for of, colds in found.items()}
    after = {of: median(each.after.processor for each in colds) for of, colds in found.items()}
    if asked.plain:
        for layers in asked.layers:
            ratio = whole["zinf", layers] / whole["inductor", layers]
            print(f"zinf takes {ratio:.2f} times what inductor takes with {layers} layers")
    least, most = min(asked.layers), max(asked.layers)
    growth = after["zinf", most] / after["zinf", least]
    print(f"after tracing, {most} layers take {growth:.2f} times what {least} take")


if __name__ == "__main__":
    main(sys.argv[1:])
