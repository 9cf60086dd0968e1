"""The run within a budget, measured."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zcompile.backend import zinf_backend
from zcompile.demo.loop import Batch, Iteration, fine_tune
from zcompile.demo.memory import ProcessMemory
from zcompile.demo.pretrained import load_model, read_batches
from zcompile.demo.screen import Screen
from zcompile.demo.setup import Setup
from zcompile.demo.summary import Outcome
from zcompile.ir import Tier
from zcompile.report.schedules import ScheduleReport, schedules
from zcompile.report.stats import stats
from zcompile.report.units import mebibytes
from zcompile.runtime.libc import return_freed_memory

CompileOptions = dict[str, str | int | bool | Callable[..., Any]]
"""What ``torch.compile`` says it takes as options."""


def train_within_budget(
    setup: Setup, swap_dir: Path, screen: Screen
) -> tuple[Outcome, tuple[ScheduleReport, ...]]:
    """Run the job through this backend; return what it took and the plans it followed."""
    with screen.activity("warming up the compiler"):
        _warm_up(setup.compute)
    with screen.activity("reading the text"):
        batches = read_batches(setup.weights, setup.job)
    memory = ProcessMemory()
    with screen.activity("loading the weights"):
        model = load_model(setup.weights)
    run = _Run(setup, model, memory, screen)
    iterations = run.through(batches, swap_dir)
    outcome = Outcome(
        job=setup.job,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        iterations=iterations,
        peak_bytes=memory.peak_bytes() if len(iterations) > 1 else None,
        compiler_bytes=run.compiler_bytes,
        stats=stats(model),
    )
    return outcome, schedules(model)


def _warm_up(compute: str) -> None:
    """Compile next to nothing: torch imports much of its compiler when it first compiles.

    So these imports are counted as imports, and not as memory that the model takes.
    """
    options: CompileOptions = {"compute": compute}
    toy = torch.compile(nn.Linear(1, 1), backend="zinf", options=options)
    toy(torch.zeros(1, 1)).sum().backward()


@dataclass(slots=True)
class _Run:
    setup: Setup
    model: nn.Module
    memory: ProcessMemory
    screen: Screen
    compiler_bytes: int = 0

    def through(self, batches: list[Batch], swap_dir: Path) -> list[Iteration]:
        options: CompileOptions = {
            "device_budget": self.setup.device_budget,
            "nvme_dir": str(swap_dir),
            "compute": self.setup.compute,
        }
        compiled = torch.compile(self.model, backend="zinf", options=options)
        steps = fine_tune(compiled, list(self.model.parameters()), batches, self.setup.job)
        return list(self.screen.iterations(self._phase, self._watched(steps), self._bytes))

    def _watched(self, iterations: Iterator[Iteration]) -> Iterator[Iteration]:
        for each in iterations:
            if each.number == 0:
                # The first step traces and compiles.  What that took for a while is no part of
                # training, and what it leaves behind is told apart.
                gc.collect()
                return_freed_memory()
                held_bytes = stats(self.model).total.held_bytes[Tier.DEVICE]
                self.compiler_bytes = self.memory.now_bytes() - held_bytes
                self.memory.restart_peak()
            yield each

    def _phase(self) -> str:
        sessions = zinf_backend.sessions(self.model)
        if not sessions:
            return "tracing"
        return "training" if sessions[-1].planned() else "planning and compiling"

    def _bytes(self) -> str:
        device = stats(self.model).iterations[-1].peak_bytes[Tier.DEVICE]
        return (
            f", device {mebibytes(device)} of {mebibytes(self.setup.device_budget)}"
            f", process +{mebibytes(self.memory.now_bytes())}"
        )
