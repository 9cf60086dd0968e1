"""Compare sequential reads and writes with fio, four threads of direct I/O, and DeepSpeed.

    python benchmarks/io.py --folder swap --gib 1 --pairs 20

Each round times ours and both rivals on the same file, in an order that alternates, so that what
else the machine does meets all of them alike.  Printed is the time of a rival over ours, the median
of the rounds with a 95 % interval, and the CPU seconds of each a GiB.  fio and async_io run
with the fastest of a few settings, found first; what is not installed is left out.  Ours and the
threads use the same extent and the same memory on huge pages; the others have a file and memory of
their own, fio on ordinary pages, for it offers no others without a reserve that the system's owner
sets up.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from bar import Bar, ratios
from peers import async_io, cpu_adam
from setting import timed, transfers_in

from zcompile.bench.direct_loop import blocks_of, direct_loop
from zcompile.runtime.arena import Arena
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.transfers import Transfers

GIB = 1 << 30
FIO_SETTINGS = tuple(product(("io_uring", "libaio"), ("1m", "4m"), (8, 32)))
DIRECTIONS = ("read", "write")
LEAST = {"read": 0.97, "write": 0.9}
"""What the time of the faster of fio and the threads must be over ours."""

Rivals = dict[str, Callable[[], tuple[float, float]]]


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
        lease = self.file.lease(self.nbytes, "benchmark")
        blocks = list(blocks_of(lease, self.memory.address))
        return timed(lambda: direct_loop(blocks, write=direction == "write"))


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


def rivals_of(bench: Bench, direction: str, folder: Path) -> Rivals:
    """Return by name what times one transfer; ours is the first, files lie in ``folder``."""
    rivals: Rivals = {
        "ours": lambda: bench.ours(direction),
        "four threads": lambda: bench.loop(direction),
    }
    if shutil.which("fio"):
        path = folder / "fio.bin"
        if not path.exists():
            fio(path, "write", bench.nbytes, FIO_SETTINGS[0])
        setting = best_setting(path, direction, bench.nbytes)
        name = f"fio {' '.join(map(str, setting))}"
        rivals[name] = lambda: fio(path, direction, bench.nbytes, setting)
    if cpu_adam.is_here():
        for locked in (False, True):
            rival = async_io.Rival(folder / "async_io.bin", bench.nbytes, locked)
            name, run = rival.best(direction, timed)
            rivals[name] = run
    return rivals


def compare(bench: Bench, direction: str, num_pairs: int, folder: Path) -> None:
    """Run all rivals in turn and print what they took, and the bars."""
    rivals = rivals_of(bench, direction, folder)
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
        print(f"{direction:5} {name:32} {speed:6.2f} GB/s  {cpu:6.3f} CPU s/GiB", flush=True)
    show_bars(direction, times)


def show_bars(direction: str, times: dict[str, Times]) -> None:
    """Print what each rival took over ours, where there is a bar for it."""
    ours = times["ours"]

    def named(start: str) -> list[str]:
        return [name for name in times if name.startswith(start)]

    plain = [*named("four threads"), *named("fio")]
    faster = min(plain, key=lambda name: statistics.median(times[name].wall))
    faster_ratios = ratios(times[faster].wall, ours.wall)
    Bar(f"{direction}: {faster} / ours", LEAST[direction]).show(faster_ratios)
    for start, bound in (("async_io ordinary", 4.0), ("async_io locked", 1.4)):
        for name in named(start):
            Bar(f"{direction}: {name} / ours", bound).show(ratios(times[name].wall, ours.wall))
    for name in named("fio"):
        over = ratios(ours.cpu, times[name].cpu)
        Bar(f"{direction}: CPU seconds, ours / fio", 1.2, at_least=False).show(over)


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
    with transfers_in(given.folder, given.io) as (file, transfers):
        bench = Bench(file, transfers, Arena(nbytes), nbytes)
        io, because = transfers.choice.io.value, transfers.choice.because
        print(f"{nbytes / GIB:g} GiB, {os.cpu_count()} CPUs, io={io} ({because})")
        bench.ours("write")  # the extent exists, and the memory too
        with tempfile.TemporaryDirectory(dir=given.folder, prefix="rivals-") as theirs:
            for direction in DIRECTIONS:
                compare(bench, direction, given.pairs, Path(theirs))


if __name__ == "__main__":
    main()
