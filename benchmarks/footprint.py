"""Measure what fine-tuning SmolLM2-135M takes: memory by phase, and traffic of the disk.

    python benchmarks/footprint.py --compute inductor --device-budget 512MiB
    python benchmarks/footprint.py --compute eager --device-budget 512MiB --host-budget 512MiB
    python benchmarks/footprint.py --plain

Resident bytes are the kernel's own peak (VmHWM) in each phase, above those after all imports
and before the model exists.  The first iteration traces and compiles; what is resident after
it beyond what the ledger holds are the compiler's objects, part of every peak that follows.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from zcompile.backend import zinf_backend
from zcompile.demo.job import Job
from zcompile.demo.loop import Batch
from zcompile.demo.memory import ProcessMemory
from zcompile.demo.packages import find_weights, stay_offline
from zcompile.ir import Tier
from zcompile.runtime.ledger import Channel, Snapshot
from zcompile.runtime.libc import return_freed_memory
from zcompile.runtime.procfs import DiskTraffic, disk_traffic
from zcompile.session import Session

COMPILERS = ("torch._dynamo", "torch._inductor.compile_fx")
"""What the first compilation would import, and the base is to include."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase of an iteration took."""

    name: str
    seconds: float
    peak_bytes: int
    traffic: DiskTraffic

    def __str__(self) -> str:
        read, written = self.traffic.read_bytes, self.traffic.write_bytes
        return (
            f"  {self.name:<9}{self.seconds:7.2f} s   peak {mib(self.peak_bytes)}   "
            f"disk read {mib(read)}, written {mib(written)}"
        )


class Meter:
    """Measures phases against the resident bytes at its construction."""

    def __init__(self) -> None:
        gc.collect()
        self._memory = ProcessMemory()

    def run(self, name: str, act: Callable[[], Any]) -> tuple[Phase, Any]:
        """Return what ``act`` took and what it returned."""
        self._memory.restart_peak()
        before, started = disk_traffic(), perf_counter()
        result = act()
        seconds, traffic = perf_counter() - started, disk_traffic().since(before)
        return Phase(name, seconds, self._memory.peak_bytes(), traffic), result

    def now_bytes(self) -> int:
        """Return the resident bytes above the base."""
        return self._memory.now_bytes()


@dataclass(frozen=True, slots=True)
class Loop:
    """A stock training loop, phase by phase."""

    call: Callable[..., Any]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    meter: Meter

    def iterate(self, batch: Batch) -> list[Phase]:
        """Train by one iteration; print nothing."""
        forward, loss = self.meter.run("forward", lambda: self.call(**batch, use_cache=False).loss)
        backward, _ = self.meter.run("backward", loss.backward)
        clip, _ = self.meter.run(
            "clip", lambda: nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        )
        step, _ = self.meter.run("step", self.optimizer.step)
        return [forward, backward, clip, step]


def mib(nbytes: int) -> str:
    """Return ``nbytes`` in MiB, in a column."""
    return f"{nbytes / MIB:7.0f} MiB"


def gradient_file_bytes(session: Session, model: nn.Module) -> int:
    """Return the bytes of the gradients in the file, which clipping reads and writes."""
    homes = session.machine.homes
    places = [homes.find(each.grad) for each in model.parameters() if each.grad is not None]
    return sum(each.home.nbytes for each in places if each and each.home.tier is Tier.NVME)


def account(session: Session, counted: Snapshot, phases: list[Phase], clipped_bytes: int) -> str:
    """Return the accounts of planner, ledger and disk beside each other."""
    moved = counted.moved_bytes
    reads = moved[Channel.NVME_READ] + clipped_bytes
    writes = moved[Channel.NVME_WRITE] + clipped_bytes
    read = sum(each.traffic.read_bytes for each in phases)
    written = sum(each.traffic.write_bytes for each in phases)
    waited = sum(counted.exposed_seconds.values())
    return "\n".join(
        (
            f"  planned peak {mib(session.planned_peak_bytes)}, "
            f"ledger {mib(counted.peak_bytes[Tier.DEVICE])} on the device, "
            f"{mib(counted.peak_bytes[Tier.HOST])} on the host",
            f"  disk read {ratio(read, reads)} and written {ratio(written, writes)} "
            f"of what ledger and clipping account for; {waited:.2f} s exposed",
        )
    )


def ratio(measured: int, counted: int) -> str:
    """Return the one as a share of the other."""
    return f"{100 * measured / counted:.1f} %" if counted else "nothing"


def parse() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compute", choices=("eager", "inductor"), default="inductor")
    parser.add_argument("--device-budget", default="512MiB")
    parser.add_argument("--host-budget")
    parser.add_argument("--swap-dir", type=Path, help="default: a temporary folder in this one")
    parser.add_argument("--plain", action="store_true", help="plain PyTorch, without a backend")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=128)
    return parser.parse_args()


def main() -> None:
    """Train and print what it takes."""
    asked = parse()
    stay_offline()
    pretrained = import_module("zcompile.demo.pretrained")
    for each in COMPILERS:
        import_module(each)
    weights = find_weights()
    job = Job(steps=asked.iterations, batch=asked.batch, sequence=asked.sequence)
    batches: list[Batch] = pretrained.read_batches(weights, job)
    meter = Meter()
    model: nn.Module = pretrained.load_model(weights)
    print(
        f"model loaded: {mib(meter.now_bytes())} above the base, {torch.get_num_threads()} threads"
    )
    with swap_folder(asked.swap_dir) as folder:
        optimizer = torch.optim.AdamW(model.parameters(), lr=job.learning_rate)
        call = model if asked.plain else compiled(model, asked, folder)
        loop = Loop(call, model, optimizer, meter)
        for number, batch in enumerate(islice(cycle(batches), asked.iterations)):
            report(number, loop, batch)
            if number == 0:
                print(compiler_objects(loop))


def compiler_objects(loop: Loop) -> str:
    """Return what tracing and compiling have left behind."""
    gc.collect()
    return_freed_memory()
    held_bytes = sum(
        each.total().held_bytes[tier]
        for each in zinf_backend.sessions(loop.model)
        for tier in (Tier.DEVICE, Tier.HOST)
    )
    resident_bytes = loop.meter.now_bytes()
    return (
        f"  after it {mib(resident_bytes)} above the base, {mib(held_bytes)} of it in the ledger, "
        f"{mib(resident_bytes - held_bytes)} not"
    )


def compiled(model: nn.Module, asked: argparse.Namespace, folder: str) -> Any:
    """Return ``model`` compiled as the arguments say."""
    options: dict[str, Any] = {
        "compute": asked.compute,
        "device_budget": asked.device_budget,
        "nvme_dir": folder,
    }
    if asked.host_budget:
        options["host_budget"] = asked.host_budget
    return torch.compile(model, backend="zinf", options=options)


def report(number: int, loop: Loop, batch: Batch) -> None:
    """Train by one iteration and print what it took."""
    phases = loop.iterate(batch)
    most = max(each.peak_bytes for each in phases)
    print(f"iteration {number}: peak {mib(most)} above the base")
    print(*phases, sep="\n")
    for session in zinf_backend.sessions(loop.model):
        clipped_bytes = gradient_file_bytes(session, loop.model)
        print(account(session, session.iterations()[-1], phases, clipped_bytes))
    loop.optimizer.zero_grad()


def swap_folder(given: Path | None) -> AbstractContextManager[str]:
    """Return ``given``, or a folder here that goes afterwards."""
    if given is not None:
        return nullcontext(str(given))
    return tempfile.TemporaryDirectory(prefix="zinf-", dir=Path.cwd())


if __name__ == "__main__":
    main()
