"""Compare sequential reads and writes with fio and with four threads of direct I/O.

    python benchmarks/io.py --folder swap --gib 1 --pairs 20

Each round times ours and both rivals on the same file, in an order that alternates, so that what
else the machine does meets all of them alike.  Printed is the time of a rival over ours, the median
of the rounds with a 95 % interval, and the CPU seconds of each a GiB.  fio runs with the fastest of
a few settings, found first; without fio on the PATH only the threads are compared.  Ours and the
threads use the same extent and the same memory on huge pages; fio has a file and buffers of its
own, on ordinary pages, for it offers no others without a reserve that the system's owner sets up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from zcompile.runtime.arena import Arena
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.syscalls import SystemCalls
from zcompile.runtime.transfers import Transfers

GIB = 1 << 30
LOOP_THREADS = 4
LOOP_BLOCK_BYTES = 8 << 20
FIO_SETTINGS = tuple(product(("io_uring", "libaio"), ("1m", "4m"), (8, 32)))
DIRECTIONS = ("read", "write")


@dataclass
class Times:
    """Seconds of wall clock and of CPU, a round each."""

    wall: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])


@dataclass(frozen=True)
class Bench:
    """One extent and the memory that goes with it."""

    file: ExtentFile
    transfers: Transfers
    memory: Arena
    nbytes: int

    def ours(self, direction: str) -> tuple[float, float]:
        """Return the seconds and the CPU seconds of one transfer by the engine."""
        lease = self.file.lease(self.nbytes, "benchmark")
        start = self.transfers.read if direction == "read" else self.transfers.write
        return timed(lambda: start(lease, 0, self.memory.address, self.nbytes, "w").wait())

    def loop(self, direction: str) -> tuple[float, float]:
        """Return the same of threads that each move every fourth block."""
        return timed(lambda: self._loop(direction))

    def _loop(self, direction: str) -> None:
        lease = self.file.lease(self.nbytes, "benchmark")
        fd = self.file.direct_fd
        assert fd is not None, "the file system refuses O_DIRECT"
        calls = SystemCalls()
        call = calls.read if direction == "read" else calls.write

        def move(first: int) -> None:
            for at in range(first, self.nbytes, LOOP_THREADS * LOOP_BLOCK_BYTES):
                nbytes = min(LOOP_BLOCK_BYTES, self.nbytes - at)
                done = 0
                while done < nbytes:
                    place = at + done
                    done += call(
                        fd, self.memory.address + place, nbytes - done, lease.offset + place
                    )

        threads = [
            threading.Thread(target=move, args=(i * LOOP_BLOCK_BYTES,)) for i in range(LOOP_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the wall-clock seconds of ``call``, and its CPU seconds over all threads."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def fio(
    path: Path, direction: str, nbytes: int, setting: tuple[str, str, int]
) -> tuple[float, float]:
    """Return the seconds of the I/O of one run of fio, and its CPU seconds."""
    engine, block, depth = setting
    command = [
        *("fio", "--name=bench", f"--filename={path}", f"--rw={direction}", f"--size={nbytes}"),
        *(f"--ioengine={engine}", f"--bs={block}", f"--iodepth={depth}", "--direct=1"),
        *("--output-format=json", "--fallocate=none", "--overwrite=1"),
        "--mem=mmap",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    (job,) = json.loads(ran.stdout)["jobs"]
    seconds = job[direction]["runtime"] / 1000
    # In percent of the run time, which leaves out what it takes to start fio.
    return seconds, seconds * (job["usr_cpu"] + job["sys_cpu"]) / 100


def best_setting(path: Path, direction: str, nbytes: int) -> tuple[str, str, int]:
    """Return the setting with which fio is fastest, of two runs each."""
    return min(
        FIO_SETTINGS,
        key=lambda setting: min(fio(path, direction, nbytes, setting)[0] for _ in range(2)),
    )


def interval(ratios: list[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the bootstrapped interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    edge = int((1 - confidence) / 2 * len(medians))
    return medians[edge], medians[-1 - edge]


def compare(bench: Bench, direction: str, num_pairs: int, fio_file: Path | None) -> None:
    """Run all rivals in turn and print the ratios."""
    rivals: dict[str, Callable[[], tuple[float, float]]] = {
        "ours": lambda: bench.ours(direction),
        "four threads": lambda: bench.loop(direction),
    }
    if fio_file is not None:
        setting = best_setting(fio_file, direction, bench.nbytes)
        rivals[f"fio {' '.join(map(str, setting))}"] = lambda: fio(
            fio_file, direction, bench.nbytes, setting
        )
    times = {name: Times() for name in rivals}
    for number in range(num_pairs):
        order = list(rivals) if number % 2 else list(reversed(rivals))
        for name in order:
            wall, cpu = rivals[name]()
            times[name].wall.append(wall)
            times[name].cpu.append(cpu)
    gib = bench.nbytes / GIB
    for name, each in times.items():
        speed = bench.nbytes / statistics.median(each.wall) / 1e9
        cpu = statistics.median(each.cpu) / gib
        line = f"{direction:5} {name:22} {speed:6.2f} GB/s  {cpu:6.3f} CPU s/GiB"
        if name != "ours":
            ratios = [a / b for a, b in zip(each.wall, times["ours"].wall, strict=True)]
            low, high = interval(ratios)
            line += f"  time / ours {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
        print(line, flush=True)


def main() -> None:
    """Parse the command line, measure both directions and print what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "zinf-io")
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--io", type=FileIO, choices=list(FileIO), default=FileIO.AUTO)
    given = parser.parse_args()
    nbytes = int(given.gib * GIB) // 4096 * 4096
    folder = RunFolder.create(given.folder)
    file = ExtentFile(folder)
    transfers = Transfers(file, Ledger(), io=given.io)
    bench = Bench(file, transfers, Arena(nbytes), nbytes)
    fio_file = folder.path / "fio.bin" if shutil.which("fio") else None
    choice = transfers.choice
    print(f"{nbytes / GIB:g} GiB, {os.cpu_count()} CPUs, io={choice.io.value} ({choice.because})")
    try:
        bench.ours("write")  # the extent exists, and the memory too
        if fio_file is not None:
            fio(fio_file, "write", nbytes, FIO_SETTINGS[0])
        for direction in DIRECTIONS:
            compare(bench, direction, given.pairs, fio_file)
    finally:
        transfers.close()
        file.close()
        folder.close()


if __name__ == "__main__":
    main()
