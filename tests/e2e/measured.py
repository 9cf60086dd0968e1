"""A training run in a process of its own that measures itself; prints one line of JSON.

Run as ``python -m tests.e2e.measured DEPTH OPTIONS BACKEND``: the options are JSON, the
backend is "zinf" or "idle", the one that schedules nothing.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import nn
from torch.nn import functional

from tests.e2e.idle import IdleBackend
from tests.e2e.jobs import compiled
from tests.e2e.models import LanguageModel
from zcompile.backend import Backend, zinf_backend
from zcompile.ir import Tier
from zcompile.runtime.ledger import Channel
from zcompile.runtime.procfs import disk_traffic, memory_use
from zcompile.session import Session

ITERATIONS = 4
WORDS = 4096
TIME = 64
BATCH = 2
ROOT = Path(__file__).parents[2]


@dataclass
class Phase:
    """Most resident bytes above the base, and the traffic of the disk."""

    peak_bytes: int = 0
    read_bytes: int = 0
    write_bytes: int = 0


@dataclass
class Iteration:
    """One iteration by phase, and what the ledger says of it."""

    forward: Phase = field(default_factory=Phase)
    backward: Phase = field(default_factory=Phase)
    clip: Phase = field(default_factory=Phase)
    step: Phase = field(default_factory=Phase)
    gradient_file_bytes: int = 0
    moved_bytes: dict[Channel, int] = field(default_factory=dict[Channel, int])
    ledger_peak_bytes: dict[Tier, int] = field(default_factory=dict[Tier, int])
    loss: float = 0.0

    @property
    def scheduled(self) -> tuple[Phase, ...]:
        """The phases whose traffic is the schedules' own."""
        return self.forward, self.backward, self.step

    @property
    def peak_bytes(self) -> int:
        return max(each.peak_bytes for each in (*self.scheduled, self.clip))


@dataclass
class Figures:
    """All that a run has measured."""

    parameter_bytes: int = 0
    planned_peak_bytes: int = 0
    buffer_bytes: int = 0
    iterations: list[Iteration] = field(default_factory=list[Iteration])

    @property
    def steady(self) -> list[Iteration]:
        """All but the first iteration, in which everything is compiled and states are made."""
        return self.iterations[1:]


def measure(depth: int, options: Mapping[str, object], backend: str = "zinf") -> Figures:
    """Run this file in a process of its own and return what it has measured.

    Homes go to a folder on the disk of the checkout: a folder in memory would move no disk.
    """
    with tempfile.TemporaryDirectory(prefix="zinf-e2e-", dir=Path(__file__).parent) as folder:
        given = json.dumps({**options, "nvme_dir": folder})
        command = [sys.executable, "-m", "tests.e2e.measured", str(depth), given, backend]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return TypeAdapter(Figures).validate_json(done.stdout.splitlines()[-1])


@contextmanager
def measured(phase: Phase, base_bytes: int) -> Generator[None]:
    """Measure what happens within; the peak is the kernel's own, which misses no moment."""
    Path("/proc/self/clear_refs").write_text("5")
    before = disk_traffic()
    yield
    traffic = disk_traffic().since(before)
    phase.read_bytes, phase.write_bytes = traffic.read_bytes, traffic.write_bytes
    phase.peak_bytes = _peak_resident_bytes() - base_bytes


def _peak_resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def _train(depth: int, options: dict[str, Any], backend: Backend) -> Figures:
    torch.set_num_threads(1)
    for each in ("torch._dynamo", "torch._inductor.compile_fx"):
        import_module(each)  # what the first compilation would import
    gc.collect()
    base_bytes = memory_use().resident_bytes
    torch.manual_seed(0)
    model = LanguageModel(1024, depth, WORDS, heads=16, max_time=TIME)
    call = compiled(model, options, backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    figures = Figures(parameter_bytes=sum(each.nbytes for each in model.parameters()))
    for number in range(ITERATIONS):
        iteration = Iteration()
        words = _words(number)
        with measured(iteration.forward, base_bytes):
            scores = call(words[:, :-1])
            loss: Any = functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
            del scores
        (session,) = backend.sessions(model)
        with measured(iteration.backward, base_bytes):
            loss.backward()
        iteration.gradient_file_bytes = _gradient_file_bytes(session, model)
        with measured(iteration.clip, base_bytes):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with measured(iteration.step, base_bytes):
            optimizer.step()
        optimizer.zero_grad()
        iteration.loss = loss.item()
        counted = session.iterations()[-1]
        iteration.moved_bytes = dict(counted.moved_bytes)
        iteration.ledger_peak_bytes = dict(counted.peak_bytes)
        figures.iterations.append(iteration)
        figures.planned_peak_bytes = session.planned_peak_bytes
        figures.buffer_bytes = session.machine.transfers.buffer_bytes
    return figures


def _words(number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(0, WORDS, (BATCH, TIME + 1), generator=generator)


def _gradient_file_bytes(session: Session, model: nn.Module) -> int:
    """Return the bytes of gradients that rest in the file: what clipping walks."""
    homes = session.machine.homes
    places = [homes.find(each.grad) for each in model.parameters() if each.grad is not None]
    return sum(each.home.nbytes for each in places if each and each.home.tier is Tier.NVME)


if __name__ == "__main__":
    chosen = IdleBackend() if sys.argv[3] == "idle" else zinf_backend
    found = _train(int(sys.argv[1]), json.loads(sys.argv[2]), chosen)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
