"""All measurements, one stage after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from zcompile.bench.compute import measure_kernels, measure_launch
from zcompile.bench.effort import Effort
from zcompile.bench.figure import Figure, Measured
from zcompile.bench.files import measure_direction, measure_overheads, measure_sharing, rigged
from zcompile.bench.memory import measure_copies, measure_memory
from zcompile.bench.updates import measure_updates
from zcompile.ir import Kind

Progress = Callable[[str, int], None]
"""Told what comes next, and how many stages there are in all."""

_KINDS = (Kind.MATMUL, Kind.ATTENTION, Kind.CONVOLUTION)
_FILE_STAGES = ("reading", "writing", "small pages and processors", "both directions at once")

_Stage = Callable[[], Iterator[Figure]]


def measure(nvme_dirs: Sequence[Path], effort: Effort, progress: Progress) -> Measured:
    """Measure memory, kernels, updates and folders; leave nothing there, however it ends.

    Raises ``ValueError`` if a folder cannot be used, ``StorageError`` if a disk is full.
    """
    stages = _stages(effort)
    num_stages = len(stages) + len(_FILE_STAGES)
    figures: list[Figure] = []
    # The folders first: one that cannot be used is refused at once.
    with rigged(nvme_dirs, effort) as rig:
        files: tuple[_Stage, ...] = (
            partial(measure_direction, rig, effort, write=False),
            partial(measure_direction, rig, effort, write=True),
            partial(measure_overheads, rig, effort),
            partial(measure_sharing, rig, effort),
        )
        for title, stage in zip(_FILE_STAGES, files, strict=True):
            progress(title, num_stages)
            figures += stage()
    for title, stage in stages.items():
        progress(title, num_stages)
        figures += stage()
    return Measured(tuple(figures))


def thread_counts() -> tuple[int, ...]:
    """Return one thread, and as many as torch computes with."""
    return tuple(sorted({1, torch.get_num_threads()}))


def _stages(effort: Effort) -> dict[str, _Stage]:
    counts = thread_counts()
    stages: dict[str, _Stage] = {}
    for threads in counts:
        stages[f"memory, threads: {threads}"] = partial(measure_memory, effort, threads)
    stages["copies of memory"] = partial(measure_copies, effort)
    for kind in _KINDS:
        stages[f"{kind.value} of each dtype"] = partial(measure_kernels, effort, counts[-1], kind)
    stages["starting an operation"] = partial(measure_launch, effort)
    for threads in counts:
        stages[f"updates, threads: {threads}"] = partial(measure_updates, effort, threads)
    return stages
