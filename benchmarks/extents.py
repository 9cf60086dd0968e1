"""Time reads and writes of one extent: in one folder, striped over several, and with checksums.

    python benchmarks/extents.py --folder swap --rounds 20
    python benchmarks/extents.py --folder /disk0/swap --folder /disk1/swap

All take turns in each round, in an order that alternates.  Printed are bytes a second, processor
seconds for each GiB, and the time over that of one folder without checksums.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bar import interval, ratios
from setting import timed

from zcompile.runtime.arena import Arena
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.transfers import Transfers

Sample = tuple[float, float]
"""Seconds by the clock and on processors."""


@dataclass(frozen=True)
class Way:
    """An extent that lies in some way, and what moves its bytes."""

    name: str
    lease: Lease
    transfers: Transfers
    memory: Arena

    def move(self, *, write: bool) -> Sample:
        start = self.transfers.write if write else self.transfers.read
        nbytes = self.lease.nbytes
        return timed(lambda: start(self.lease, 0, self.memory.address, nbytes, "w").wait())


def ways(given: argparse.Namespace, stack: ExitStack) -> list[Way]:
    """Return one folder, with sums too, and if there are several all of them in both ways."""
    memory = Arena(given.mib << 20)
    made: list[Way] = []
    layouts = [given.folder[:1], given.folder] if len(given.folder) > 1 else [given.folder]
    for folders in layouts:
        for sums in (False, True):
            runs = RunFolder.create_all(folders)
            for run in runs:
                stack.callback(run.close)
            file = ExtentFile(runs, sums=sums)
            stack.callback(file.close)
            transfers = Transfers(file, Ledger(), io=given.io)
            stack.callback(transfers.close)
            name = f"{len(folders)} folders" if len(folders) > 1 else "one folder"
            lease = file.lease(given.mib << 20, "benchmark")
            made.append(Way(name + ", checksums" * sums, lease, transfers, memory))
    for way in made:
        way.move(write=True)  # the extent exists, and the memory too
    return made


def show(direction: str, made: Sequence[Way], samples: dict[str, list[Sample]]) -> None:
    first = [wall for wall, _ in samples[made[0].name]]
    for way in made:
        walls = [wall for wall, _ in samples[way.name]]
        cpu = statistics.median(cpu for _, cpu in samples[way.name])
        over = ratios(walls, first)
        low, high = interval(over)
        rate = way.lease.nbytes / statistics.median(walls) / 1e9
        print(
            f"{direction:5} {way.name:24} {rate:6.2f} GB/s  "
            f"{cpu / way.lease.nbytes * 2**30:.3f} CPU s/GiB  "
            f"{statistics.median(over):.3f} ({low:.3f} to {high:.3f}) times the first",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=Path, action="append", required=True)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--io", type=FileIO, choices=list(FileIO), default=FileIO.AUTO)
    given = parser.parse_args()
    with ExitStack() as stack:
        made = ways(given, stack)
        for write in (False, True):
            samples: dict[str, list[Sample]] = {way.name: [] for way in made}
            for number in range(given.rounds):
                for way in made if number % 2 else reversed(made):
                    samples[way.name].append(way.move(write=write))
            show("write" if write else "read", made, samples)


if __name__ == "__main__":
    main()
