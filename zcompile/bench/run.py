"""The command from start to end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from zcompile.bench.effort import QUICK, WHOLE, Effort
from zcompile.bench.measure import Progress, measure
from zcompile.bench.others import Meter, disturbed
from zcompile.bench.record import Record
from zcompile.bench.show import figures_table, progress_on
from zcompile.bench.target import Place, hardware_of
from zcompile.machines.here import check_writable, here_path

LIMITS = (
    "of limit: files beside four threads of direct I/O over huge pages, updates beside adding "
    "the gradient in place to each of the other three tensors; more than 100% is chance."
)


def run_bench(
    folders: Sequence[Path], env: Mapping[str, str], *, quick: bool, as_json: bool
) -> None:
    """Measure, keep the figures and print them.

    Raises ``ValueError`` or ``StorageError`` if a folder or the cache cannot be used.
    """
    check_writable(here_path(env))  # and not after two minutes
    with progress_on(Console(stderr=True)) as progress:
        record = measure_here(folders, QUICK if quick else WHOLE, progress, quick=quick)
    record.save(env)
    if told := disturbed(record.others_processors, os.cpu_count() or 1):
        Console(stderr=True).print(f"zinf: {told}", soft_wrap=True, style="yellow")
    if as_json:
        sys.stdout.write(json.dumps(record.as_json(), indent=2) + "\n")
        return
    console = Console()
    console.print(figures_table(record.measured))
    console.print(LIMITS)
    console.print(f'kept for plans, as the machine "here": {here_path(env)}', soft_wrap=True)


def measure_here(
    folders: Sequence[Path], effort: Effort, progress: Progress, *, quick: bool
) -> Record:
    """Measure this machine and make its target."""
    when, before = datetime.now(UTC), Meter.now()
    place = Place.here(folders)
    measured = measure(folders, effort, progress)
    others = Meter.now().others_since(before)
    return Record(when, quick, measured, hardware_of(measured, place, when), others)
