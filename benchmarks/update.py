"""Time an update whose parameters, gradients and states are in a file against what it cannot beat.

    python benchmarks/update.py --folder swap
    python benchmarks/update.py --folder swap --million 25 --rounds 5 --threads 1 --budget 256MiB

Each round runs a step of AdamW in fp32; the same bytes through the same engine, reads and writes
at once and nothing else; and the kernels alone on memory.  The order alternates.  Printed is the
time of the step over the longer of the two others, the median of the rounds; and the CPU time of
the step over that of the two others together, which a loaded machine changes less.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bar import Bar
from setting import timed
from torch import Tensor, nn

from zcompile.backend import zinf_backend
from zcompile.ir import Channel, Tier
from zcompile.optim.native import NativeKernels
from zcompile.optim.rules import Operands, Scaling, rule_of
from zcompile.runtime.arena import Arena
from zcompile.runtime.extents import Lease
from zcompile.runtime.pending import Pending
from zcompile.session import Session

PIECE_BYTES = 4 << 20
WINDOW_PIECES = 8
WIDTH = 1024


def model_of(numel: int) -> nn.Module:
    """Return a stack of linear layers of about ``numel`` parameters, as a transformer has them."""
    per_layer = 8 * WIDTH * WIDTH
    layers = [
        nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH))
        for _ in range(max(1, numel // per_layer))
    ]
    return nn.Sequential(*layers)


@dataclass
class Floor:
    """What the update moves, moved by the same engine without waiting for any result."""

    session: Session
    read_bytes: int
    written_bytes: int

    def __post_init__(self) -> None:
        self._arena = Arena(2 * WINDOW_PIECES * PIECE_BYTES)
        homes = self.session.machine.homes
        half = max(self.read_bytes, self.written_bytes)
        self._read_from = homes.lease(half, "floor")
        self._write_to = homes.lease(half, "floor")
        # What has never been written is slower to write, and takes no I/O to read.
        for lease in (self._read_from, self._write_to):
            self._move(0, half, self._read_from, lease)

    def __call__(self) -> None:
        self._move(self.read_bytes, self.written_bytes, self._read_from, self._write_to)

    def _move(self, read_bytes: int, written_bytes: int, read_from: Lease, write_to: Lease) -> None:
        """Read and write so many bytes at once, in pieces."""
        transfers = self.session.machine.transfers
        reads, writes = self._pieces(read_bytes), self._pieces(written_bytes)
        flying: dict[tuple[bool, int], Pending] = {}
        for at in range(max(len(reads), len(writes))):
            slot = at % WINDOW_PIECES
            for is_write, pieces, lease in (
                (False, reads, read_from),
                (True, writes, write_to),
            ):
                if at >= len(pieces):
                    continue
                before = flying.pop((is_write, slot), None)
                if before is not None:
                    before.wait()
                start = transfers.write if is_write else transfers.read
                address = self._arena.address + (slot + WINDOW_PIECES * is_write) * PIECE_BYTES
                offset, nbytes = pieces[at]
                flying[is_write, slot] = start(
                    lease, offset, address, nbytes, "floor", capacity=PIECE_BYTES
                )
        for each in flying.values():
            each.wait()

    @staticmethod
    def _pieces(nbytes: int) -> list[tuple[int, int]]:
        return [(at, min(PIECE_BYTES, nbytes - at)) for at in range(0, nbytes, PIECE_BYTES)]


def kernels_alone(optimizer: torch.optim.AdamW, numel: int) -> Callable[[], None]:
    """Return what updates ``numel`` elements in memory, window by window."""
    kernels, rule = NativeKernels.load(), rule_of(optimizer)
    assert kernels is not None, "there is no native library"
    assert rule is not None
    group = optimizer.param_groups[0]
    arithmetic = kernels.arithmetic(rule, group, Scaling(), torch.float32, first=False)
    assert arithmetic is not None, "the native kernels do not have torch's bits here"
    window = WINDOW_PIECES * PIECE_BYTES // 4
    tensors = [torch.rand(window) for _ in range(4)]

    def run() -> None:
        for start in range(0, numel, window):
            param, grad, *states = (each[: min(window, numel - start)] for each in tensors)
            step = torch.tensor(4.0)
            named: dict[str, Tensor] = dict(zip(("exp_avg", "exp_avg_sq"), states, strict=True))
            operands = [Operands(param, grad, named, False, step)]
            kernels.run(kernels.prepared(arithmetic, rule, group, Scaling(), operands))

    return run


def moved_bytes(session: Session, call: Callable[[], object]) -> tuple[int, int]:
    """Return the bytes that ``call`` reads from and writes to files."""
    before = session.total()
    call()
    moved = session.total().since(before).moved_bytes
    return moved[Channel.NVME_READ], moved[Channel.NVME_WRITE]


def profiled(call: Callable[[], object]) -> None:
    profile = cProfile.Profile()
    profile.runcall(call)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def take_step(optimizer: torch.optim.AdamW) -> None:
    optimizer.step()


def prepare(folder: str, budget: str, numel: int) -> tuple[Session, torch.optim.AdamW, nn.Module]:
    """Return a trained model's session and optimizer, gradients in place, one step done."""
    model = model_of(numel)
    kinds = ("parameters", "gradients", "optimizer")
    options: Any = {
        "compute": "eager",
        "device_budget": budget,
        "nvme_dir": folder,
        "place": dict.fromkeys(kinds, str(Tier.NVME)),
    }
    compiled: Any = torch.compile(model, backend="zinf", options=options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    loss: Tensor = compiled(torch.randn(1, WIDTH)).square().mean()
    loss.backward()
    take_step(optimizer)
    (session,) = zinf_backend.sessions(model)
    return session, optimizer, model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="where the file is made; default: temporary")
    parser.add_argument("--million", type=int, default=100, help="parameters, in millions")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", default="512MiB")
    parser.add_argument("--profile", action="store_true", help="profile one step")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        session, optimizer, model = prepare(folder, asked.budget, asked.million * 10**6)
        numel = sum(each.numel() for each in model.parameters())
        read, written = moved_bytes(session, partial(take_step, optimizer))
        runs: dict[str, Callable[[], object]] = {
            "step": partial(take_step, optimizer),
            "bytes alone": Floor(session, read, written),
            "kernels alone": kernels_alone(optimizer, numel),
        }
        print(f"{numel:,} parameters, {read / 1e6:,.0f} MB read, {written / 1e6:,.0f} MB written")
        if asked.profile:
            profiled(partial(take_step, optimizer))
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for round_number in range(asked.rounds):
            order = list(runs.items())[:: 1 if round_number % 2 else -1]
            for name, run in order:
                seconds[name].append(timed(run))
        report(seconds)


def report(seconds: Mapping[str, list[tuple[float, float]]]) -> None:
    """Print the medians, and the two ratios, each taken round by round."""
    for name, each in seconds.items():
        wall, cpu = ([one[kind] for one in each] for kind in (0, 1))
        print(
            f"{name:14} {statistics.median(wall):6.3f} s  ({min(wall):.3f} to {max(wall):.3f}), "
            f"{statistics.median(cpu):.3f} s of CPU"
        )
    rounds = list(zip(*seconds.values(), strict=True))
    times = [step[0] / max(alone[0], kernels[0]) for step, alone, kernels in rounds]
    work = [step[1] / (alone[1] + kernels[1]) for step, alone, kernels in rounds]
    what = "update of parameters in a file: step / longer of the others"
    Bar(what, 1.1, at_least=False).show(times)
    print(f"CPU of the step over that of both others: {statistics.median(work):.3f}")


if __name__ == "__main__":
    main()
