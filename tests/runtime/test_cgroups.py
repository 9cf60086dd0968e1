"""Limits of control groups, read from trees of files of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from zcompile.runtime.cgroups import (
    Limits,
    available_cpus,
    available_memory_bytes,
    limits,
)
from zcompile.runtime.procfs import system_memory

NONE = Limits(None, None)
V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "9:name=systemd:/\n4:memory:/x\n2:cpu,cpuacct:/x\n0::/\n"}
CPU_V1, MEMORY_V1 = "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/memory"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, NONE),
        (V2, NONE),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, NONE),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, Limits(1.5, None)),
        # Within a container the path is one outside of it.
        (V2 | {"sys/fs/cgroup/memory.max": "1073741824\n"}, Limits(None, 1 << 30)),
        (V2 | {"sys/fs/cgroup/memory.max": "max\n"}, NONE),
        # The strictest of the groups around it.
        (
            V2
            | {
                "sys/fs/cgroup/a/memory.max": "4096\n",
                "sys/fs/cgroup/a/b/memory.max": "8192\n",
                "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
            },
            Limits(2.0, 4096),
        ),
        (V1 | {f"{MEMORY_V1}/x/memory.limit_in_bytes": "9223372036854771712\n"}, NONE),
        (V1 | {f"{MEMORY_V1}/x/memory.limit_in_bytes": "4096\n"}, Limits(None, 4096)),
        (
            V1
            | {
                f"{CPU_V1}/x/cpu.cfs_quota_us": "-1\n",
                f"{CPU_V1}/x/cpu.cfs_period_us": "100000\n",
                f"{CPU_V1}/cpu.cfs_quota_us": "250000\n",
                f"{CPU_V1}/cpu.cfs_period_us": "100000\n",
            },
            Limits(2.5, None),
        ),
    ],
)
def test_the_strictest_limit_is_found(tmp_path: Path, files: dict[str, str], found: Limits) -> None:
    assert limits(tree(tmp_path, files)) == found


def test_what_may_be_had_is_never_more_than_the_machine_has() -> None:
    assert available_cpus() >= 1
    assert 0 < available_memory_bytes() <= system_memory().total_bytes
    assert 0 < system_memory().available_bytes <= system_memory().total_bytes
