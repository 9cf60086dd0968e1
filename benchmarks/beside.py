"""Time a loop of fp32 products in Python with and without files being read and written beside it.

    python benchmarks/beside.py --folder swap --rounds 20

The loop uses all processors, so what the I/O takes of them is missing to it.  In each round it
runs alone, beside reads and beside writes, in an order that alternates.  Printed is how much
longer it takes than alone, less the processor time of the I/O: what the same bytes take of it
when nothing else runs, over the processors there are.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from bar import Bar
from setting import transfers_in

from zcompile.runtime.arena import Arena
from zcompile.runtime.cgroups import available_cpus
from zcompile.runtime.extents import Lease
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.pending import Pending
from zcompile.runtime.transfers import Transfers

ROWS = 1024
PIECE_BYTES = 64 << 20
PIECES = 4
WAYS = (None, "read", "write")


@dataclass(frozen=True)
class Bench:
    """A file in pieces, each with memory of its own."""

    lease: Lease
    transfers: Transfers
    memory: Arena
    num_products: int

    def start(self, direction: str, piece: int) -> Pending:
        start = self.transfers.read if direction == "read" else self.transfers.write
        at = piece * PIECE_BYTES
        return start(self.lease, at, self.memory.address + at, PIECE_BYTES, "w", keep=self.memory)

    def cpu_s_per_byte(self, direction: str) -> float:
        """Return the processor time of a byte moved when nothing else runs."""
        cpu = time.process_time()
        for pending in [self.start(direction, piece) for piece in range(PIECES)]:
            pending.wait()
        return (time.process_time() - cpu) / (PIECES * PIECE_BYTES)

    def loop(self, direction: str | None) -> tuple[float, int]:
        """Return the seconds of the loop, and how many bytes were moved beside it."""
        left, right = torch.ones(ROWS, ROWS), torch.ones(ROWS, ROWS)
        out = torch.empty(ROWS, ROWS)
        flying = [self.start(direction, piece) for piece in range(PIECES)] if direction else []
        num_landed = 0
        start = time.perf_counter()
        for _ in range(self.num_products):
            torch.mm(left, right, out=out)
            for piece, pending in enumerate(flying):
                if direction and pending.landed:
                    num_landed += 1
                    flying[piece] = self.start(direction, piece)
        seconds = time.perf_counter() - start
        for pending in flying:
            pending.wait()
        # Of those that are still under way, half on average.
        return seconds, (num_landed + len(flying) // 2) * PIECE_BYTES


def measure(bench: Bench, num_rounds: int) -> dict[str, list[float]]:
    """Return by direction the slowdown of each round, processor time of the I/O taken off."""
    excess: dict[str, list[float]] = {"read": [], "write": []}
    shown: dict[str, list[tuple[float, float, float]]] = {"read": [], "write": []}
    for number in range(num_rounds):
        order = WAYS if number % 2 else tuple(reversed(WAYS))
        taken = {direction: bench.loop(direction) for direction in order}
        alone_s, _ = taken[None]
        for direction in excess:
            seconds, nbytes = taken[direction]
            cpu_s = nbytes * bench.cpu_s_per_byte(direction) / available_cpus()
            excess[direction].append(seconds / alone_s - 1 - cpu_s / alone_s)
            shown[direction].append((seconds / alone_s - 1, cpu_s / alone_s, nbytes / seconds))
    for direction, rounds in shown.items():
        slower, cpu, rate = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(
            f"beside {direction:5} at {rate / 1e9:.2f} GB/s: {slower:.1%} slower, "
            f"processor time of the I/O {cpu:.1%}"
        )
    return excess


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "zinf-io")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--products", type=int, default=40)
    parser.add_argument("--io", type=FileIO, choices=list(FileIO), default=FileIO.AUTO)
    given = parser.parse_args()
    torch.set_num_threads(available_cpus())
    with transfers_in(given.folder, given.io) as (file, transfers):
        lease = file.lease(PIECES * PIECE_BYTES, "benchmark")
        bench = Bench(lease, transfers, Arena(PIECES * PIECE_BYTES), given.products)
        bench.cpu_s_per_byte("write")  # the extent exists, and the memory too
        bench.loop(None)
        for direction, excess in measure(bench, given.rounds).items():
            what = f"products beside {direction}s: slowdown less its CPU time"
            Bar(what, 0.05, at_least=False).show(excess)


if __name__ == "__main__":
    main()
