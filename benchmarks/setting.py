"""What benchmarks of files and of time have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.transfers import Transfers


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the wall-clock seconds of ``call``, and its CPU seconds over all threads."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


@contextmanager
def transfers_in(folder: Path, io: FileIO) -> Generator[tuple[ExtentFile, Transfers]]:
    """Lend a new file in ``folder`` and what reads and writes it."""
    run_folder = RunFolder.create(folder)
    file = ExtentFile(run_folder)
    transfers = Transfers(file, Ledger(), io=io)
    try:
        yield file, transfers
    finally:
        transfers.close()
        file.close()
        run_folder.close()
