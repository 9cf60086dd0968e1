"""How fast a folder, or several striped as one, is read and written, by each way that works."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from zcompile.bench.direct_loop import blocks_of, direct_loop
from zcompile.bench.effort import Effort
from zcompile.bench.figure import Figure, Scale, Unit, figures_of
from zcompile.bench.sampling import Spread, alternate, cpu_share, timed
from zcompile.ir import page_aligned
from zcompile.runtime.arena import Arena
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.file_io import FileIO, choose, refusal
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.pending import Pending
from zcompile.runtime.transfers import Transfers

READS, WRITES, FILES = "reads", "writes", "files"
LOOP = "four threads, direct"
READ_LATENCY, WRITE_LATENCY = "read latency", "write latency"
READ_CPU, WRITE_CPU = "reading takes", "writing takes"
BESIDE = "one direction beside the other"
_LEAST_BYTES = 16 << 20
_ROUND_S = 0.2
"""A file is as large as takes about so long to write, within the bounds of the effort."""


@dataclass(frozen=True, slots=True)
class Rig:
    """One extent, memory on huge pages of the same size, and every way between the two."""

    file: ExtentFile
    lease: Lease
    memory: Arena
    ways: Mapping[FileIO, Transfers]
    nbytes: int

    @property
    def chosen(self) -> Transfers:
        """The way that is taken where nothing else is asked for."""
        return self.ways[choose(FileIO.AUTO).io]

    def start(self, transfers: Transfers, *, write: bool, nbytes: int, at: int = 0) -> Pending:
        """Start moving ``nbytes`` from byte ``at`` on."""
        start = transfers.write if write else transfers.read
        return start(self.lease, at, self.memory.address + at, nbytes, "measured", keep=self.memory)

    def whole(self, io: FileIO, *, write: bool) -> Callable[[], float]:
        """Return what moves everything once and tells the seconds.

        Through the page cache, writes are done when they have reached the disk, and reads
        find nothing there.
        """

        def move() -> None:
            self.start(self.ways[io], write=write, nbytes=self.nbytes).wait()
            if self._cached(io) and write:
                for each in self.file.files:
                    os.fsync(each.fd)

        def run() -> float:
            if self._cached(io) and not write:
                for each in self.file.files:
                    os.posix_fadvise(each.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return timed(move)()

        return run

    def loop(self, *, write: bool) -> Callable[[], float]:
        """Return the same by four threads of direct I/O, to which nothing is in the way."""
        blocks = list(blocks_of(self.lease, self.memory.address))
        return timed(lambda: direct_loop(blocks, write=write))

    def _cached(self, io: FileIO) -> bool:
        return self.ways[io].buffered_because is not None


def ways_here() -> tuple[FileIO, ...]:
    """Return the ways to read and write files that are worth measuring here."""
    named = [io for io in FileIO if io not in (FileIO.AUTO, FileIO.PYTHON) and refusal(io) is None]
    # Python's threads are for where there is no native library.
    return tuple(named) if choose(FileIO.AUTO).native else (FileIO.BUFFERED, FileIO.PYTHON)


@contextmanager
def rigged(nvme_dirs: Sequence[Path], effort: Effort) -> Generator[Rig]:
    """Lend a file in each of the folders, striped as one; however this ends, they are removed.

    Raises ``ValueError`` if the folder cannot be used, ``StorageError`` if the disk is full.
    """
    with ExitStack() as stack:
        folders = RunFolder.create_all(nvme_dirs)
        for folder in folders:
            stack.callback(folder.close)
        file = ExtentFile(folders, slab_bytes=_LEAST_BYTES)
        stack.callback(file.close)
        ways = {io: Transfers(file, Ledger(), io=io) for io in ways_here()}
        for transfers in ways.values():
            stack.callback(transfers.close)
        nbytes = _affordable(file, ways[choose(FileIO.AUTO).io], effort)
        rig = Rig(file, file.lease(nbytes, "measured"), Arena(nbytes), ways, nbytes)
        # Reads of what was never written are answered by the file system, without the device.
        rig.memory.tensor(0, torch.uint8, (nbytes,), (1,)).random_()
        rig.start(rig.chosen, write=True, nbytes=nbytes).wait()
        yield rig


def _affordable(file: ExtentFile, transfers: Transfers, effort: Effort) -> int:
    """Return how many bytes to measure with: fewer where the disk is slow."""
    nbytes = min(_LEAST_BYTES, effort.file_bytes)
    lease, memory = file.lease(nbytes, "first"), Arena(nbytes)
    write = timed(lambda: transfers.write(lease, 0, memory.address, nbytes, "first").wait())
    write()  # the file system sets out where it lies
    wanted = page_aligned(int(_ROUND_S * nbytes / write()))
    return max(nbytes, min(wanted, effort.file_bytes))


def measure_direction(rig: Rig, effort: Effort, *, write: bool) -> Iterator[Figure]:
    """Yield the rate of each way in one direction, beside four threads of direct I/O."""
    runs = {io.value: rig.whole(io, write=write) for io in rig.ways}
    limits: dict[str, str] = {}
    if all(each.direct_fd is not None for each in rig.file.files):
        limits = dict.fromkeys(runs, LOOP)
        runs[LOOP] = rig.loop(write=write)
    samples = alternate(runs, effort.pace(10))
    group = WRITES if write else READS
    scale = Scale(Unit.BYTES_PER_S, rig.nbytes)
    yield from figures_of(group, None, samples, lambda _: scale, limits)


def measure_overheads(rig: Rig, effort: Effort) -> Iterator[Figure]:
    """Yield what a page takes, and how many processors reading and writing keep busy."""
    transfers = rig.chosen

    def page(*, write: bool) -> Callable[[], float]:
        return timed(lambda: rig.start(transfers, write=write, nbytes=4096).wait(), 10)

    def load(*, write: bool) -> Callable[[], float]:
        whole = rig.start
        return lambda: cpu_share(lambda: whole(transfers, write=write, nbytes=rig.nbytes).wait())

    latencies = {READ_LATENCY: page(write=False), WRITE_LATENCY: page(write=True)}
    loads = {READ_CPU: load(write=False), WRITE_CPU: load(write=True)}
    samples = alternate({**latencies, **loads}, effort.pace(4))

    def scale_of(name: str) -> Scale:
        return Scale(Unit.SECONDS if name in latencies else Unit.PROCESSORS, 1)

    yield from figures_of(FILES, None, samples, scale_of)


def measure_sharing(rig: Rig, effort: Effort) -> Iterator[Figure]:
    """Yield how fast each direction is while the other runs too, as a part of its own speed."""
    transfers, half = rig.chosen, rig.nbytes // 2 // 4096 * 4096

    def one(*, write: bool) -> Pending:
        return rig.start(transfers, write=write, nbytes=half, at=half if write else 0)

    def both() -> None:
        reading, writing = one(write=False), one(write=True)
        reading.wait()
        writing.wait()

    samples = alternate(
        {
            "read": timed(lambda: one(write=False).wait()),
            "write": timed(lambda: one(write=True).wait()),
            "both": timed(both),
        },
        effort.pace(4),
    )
    rounds = zip(samples["read"], samples["write"], samples["both"], strict=True)
    parts = [part_beside(read, write, both) for read, write, both in rounds]
    yield Figure(FILES, BESIDE, None, Unit.PART, Spread.of(parts))


def part_beside(one_s: float, other_s: float, both_s: float) -> float:
    """Return the speed of each of two things while both run, from their times.

    ``one_s`` and ``other_s`` are what they take alone, ``both_s`` what they take when started
    together, the longer one running on alone at full speed.  From a half, where they share
    everything, to 1, where they share nothing.

    >>> part_beside(1.0, 1.0, 2.0), part_beside(1.0, 3.0, 3.0), part_beside(1.0, 2.0, 3.0)
    (0.5, 1.0, 0.5)
    """
    short_s, long_s = sorted((one_s, other_s))
    # While both run, each does what it does alone in ``short_s``.
    both_run_s = max(short_s, both_s - (long_s - short_s))
    return max(0.5, short_s / both_run_s)
