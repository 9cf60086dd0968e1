"""What the control group of this process allows it: processors and memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from zcompile.runtime.procfs import system_memory

_MOUNT = Path("sys/fs/cgroup")
_NO_LIMIT_BYTES = 1 << 60
"""The first version of control groups says "no limit" by a number near 2^63."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``cpus`` is processors' worth of time, ``memory_bytes`` resident memory; ``None``: no limit.

    The strictest of the group itself and of those around it.
    """

    cpus: float | None
    memory_bytes: int | None


def limits(root: Path = Path("/")) -> Limits:
    """Read both versions of control groups below ``root``.  What cannot be read sets no limit."""
    quotas = [_quota_v2(folder) for folder in _folders(root, "")]
    quotas += [_quota_v1(folder) for folder in _folders(root, "cpu")]
    sizes = [_number(folder / "memory.max") for folder in _folders(root, "")]
    sizes += [_number(folder / "memory.limit_in_bytes") for folder in _folders(root, "memory")]
    return Limits(
        min((each for each in quotas if each is not None), default=None),
        min((each for each in sizes if each is not None and each < _NO_LIMIT_BYTES), default=None),
    )


def available_cpus() -> int:
    """Return how many processors this process may use at once, by affinity and control group."""
    allowed = len(os.sched_getaffinity(0))
    quota = limits().cpus
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def available_memory_bytes() -> int:
    """Return how much memory this process may ever have: the machine's, or its group's limit."""
    limit = limits().memory_bytes
    total = system_memory().total_bytes
    return total if limit is None else min(total, limit)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the group's folder and those around it; none if there is no such controller.

    ``""`` stands for the second version, which has all controllers in one tree.
    """
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        mounts = [controllers, controller] if controller else ["", "unified"]
        inside = Path(path.lstrip("/"))
        for mount in mounts:
            # Within a container the path may be one outside of it: then only the top is there.
            for each in (inside, *inside.parents):
                yield root / _MOUNT / mount / each


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = (_text(folder / "cpu.max") or "max").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and int(period) > 0 else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _number(file: Path) -> int | None:
    text = _text(file)
    return int(text) if text and text.isdecimal() else None


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:  # not there, or not for us to see
        return None
