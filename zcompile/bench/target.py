"""What planning reads of all that was measured: this machine as numbers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch

from zcompile.bench.compute import LAUNCH
from zcompile.bench.figure import Measured
from zcompile.bench.files import (
    BESIDE,
    FILES,
    READ_CPU,
    READ_LATENCY,
    READS,
    WRITE_CPU,
    WRITE_LATENCY,
    WRITES,
)
from zcompile.bench.memory import COPIES, MEMORY, TRIAD
from zcompile.bench.updates import PARAMETER_BYTES, UPDATES
from zcompile.ir import Channel, Hardware, Kind, Link, Tier
from zcompile.ir.hardware import Shares
from zcompile.machines.here import NAME, cpu_model
from zcompile.runtime.cgroups import available_cpus, available_memory_bytes
from zcompile.runtime.file_io import FileIO, choose

CORES, DISK, BANDWIDTH = "cores", "disk", "memory"
"""What things that run at once share on a machine without a device of its own."""

_COMPUTING = (Kind.MATMUL, Kind.ATTENTION, Kind.CONVOLUTION)
_LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class Place:
    """Where it was measured: processors to use at once, threads that compute, bytes, the way.

    ``folder_bytes`` is what is free in all ``folders``; those of one device are counted once.
    """

    cpus: int
    threads: int
    memory_bytes: int
    folders: tuple[Path, ...]
    folder_bytes: int
    io: FileIO

    @classmethod
    def here(cls, nvme_dirs: Sequence[Path]) -> Place:
        """Return the machine that this runs on, with files in these folders."""
        there = [each if each.exists() else each.parent for each in nvme_dirs]
        devices = {each.stat().st_dev: each for each in there}
        return cls(
            cpus=available_cpus(),
            threads=torch.get_num_threads(),
            memory_bytes=available_memory_bytes(),
            folders=tuple(nvme_dirs),
            folder_bytes=sum(shutil.disk_usage(each).free for each in devices.values()),
            io=choose(FileIO.AUTO).io,
        )


def hardware_of(measured: Measured, place: Place, when: datetime) -> Hardware:
    """Return the target of plans for this machine.

    Kernels and updates use ``threads`` of its processors, copies those that they were seen to
    keep busy.  The bandwidth of memory is shared by updates and all copies; what kernels take
    of it differs from one to the next, and is in their time.
    """
    return Hardware(
        name=NAME,
        source=(
            f"zinf bench, {when.isoformat(timespec='minutes')}: {cpu_model()}, "
            f"{place.threads} threads on {place.cpus} processors; files in "
            f"{', '.join(map(str, place.folders))} by "
            f"{place.io}; rates are medians of what kernels, updates and copies reached."
        ),
        # The host's memory is the device's: counted once.
        capacities={Tier.DEVICE: place.memory_bytes, Tier.NVME: place.folder_bytes},
        links=_links(measured, place),
        flops_per_s={
            kind: {
                dtype: measured.median(kind.value, dtype) for dtype in measured.names(kind.value)
            }
            for kind in _COMPUTING
        },
        memory_bytes_per_s=_memory_rate(measured),
        launch_s=measured.median(LAUNCH, "one operation"),
        compute_uses=_shares({CORES: place.threads / place.cpus}),
        update_uses=_shares(
            {
                CORES: place.threads / place.cpus,
                BANDWIDTH: _update_rate(measured) / _memory_rate(measured),
            }
        ),
    )


def _links(measured: Measured, place: Place) -> dict[Channel, Link]:
    disk_share = 0.5 / measured.median(FILES, BESIDE)
    found: dict[Channel, Link] = {}
    for channel, group, latency, load in (
        (Channel.NVME_READ, READS, READ_LATENCY, READ_CPU),
        (Channel.NVME_WRITE, WRITES, WRITE_LATENCY, WRITE_CPU),
    ):
        rate = measured.median(group, place.io.value)
        cores = measured.median(FILES, load) / place.cpus
        uses = {DISK: disk_share, CORES: cores, BANDWIDTH: rate / _memory_rate(measured)}
        found[channel] = Link(
            bandwidth_bytes_per_s=rate,
            latency_s=measured.median(FILES, latency),
            uses=_shares(uses),
        )
    for channel, direction in ((Channel.H2D, "in"), (Channel.D2H, "out")):
        rate = measured.median(COPIES, direction)
        # Read and written: twice the bytes.  One thread copies.
        uses = {CORES: 1 / place.cpus, BANDWIDTH: 2 * rate / _memory_rate(measured)}
        found[channel] = Link(
            bandwidth_bytes_per_s=rate,
            latency_s=measured.median(COPIES, "latency"),
            uses=_shares(uses),
        )
    return found


def _memory_rate(measured: Measured) -> float:
    return measured.median(MEMORY, TRIAD)


def _update_rate(measured: Measured) -> float:
    # The first is what managed updates use: the native kernels where there are some.
    return PARAMETER_BYTES / measured.median(UPDATES, measured.names(UPDATES)[0])


def _shares(uses: dict[str, float]) -> Shares:
    """Return the shares in the range that they may have; measured ones may stick out a little."""
    return tuple((name, min(1.0, max(_LEAST_SHARE, share))) for name, share in uses.items())
