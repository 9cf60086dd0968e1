"""Processors, memory and the limits that the system sets."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch

from zcompile.doctor.finding import Finding, Section
from zcompile.machines.here import cpu_model
from zcompile.report.units import mebibytes
from zcompile.runtime.cgroups import Limits, available_cpus, limits
from zcompile.runtime.procfs import max_mappings, memory_use, system_memory

_SYSTEM = Section("system")
_USUAL_MAPPINGS = 65530
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def system_findings() -> tuple[Finding, ...]:
    """Say what the processors, the memory and the kernel's settings allow."""
    group = limits()
    return (
        _cores(group, available_cpus(), torch.get_num_threads()),
        _memory(group),
        huge_pages(_HUGE_PAGES),
        _locked(*resource.getrlimit(resource.RLIMIT_MEMLOCK)),
        _mappings(max_mappings()),
    )


def _cores(group: Limits, available: int, threads: int) -> Finding:
    quota = "no quota" if group.cpus is None else f"a quota of {group.cpus:g}"
    says = (
        f"{available} to use at once ({cpu_model()}; {os.cpu_count()} in the machine, "
        f"{len(os.sched_getaffinity(0))} by affinity, {quota} by cgroup); torch uses {threads}"
    )
    if threads > available:
        return _SYSTEM.warning(
            "cores",
            f"{says}: its threads wait for one another in a busy loop",
            f"set OMP_NUM_THREADS={available}, or less to leave a core for copies",
        )
    return _SYSTEM.ok("cores", says)


def _memory(group: Limits) -> Finding:
    memory = system_memory()
    limit = "no limit" if group.memory_bytes is None else f"at most {mebibytes(group.memory_bytes)}"
    return _SYSTEM.ok(
        "memory",
        f"{mebibytes(memory.total_bytes)}, {mebibytes(memory.available_bytes)} of it available; "
        f"{limit} by cgroup; this process holds {mebibytes(memory_use().resident_bytes)}",
    )


def huge_pages(setting: Path) -> Finding:
    """Say whether memory may lie on huge pages, by the file of the kernel's ``setting``."""
    remedy = f"echo madvise > {setting}"
    try:
        chosen = setting.read_text().partition("[")[2].partition("]")[0]
    except FileNotFoundError:
        return _SYSTEM.warning(
            "huge pages",
            "this kernel has none: direct I/O reaches about two thirds of its speed",
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        )
    if chosen == "never":
        says = "forbidden: direct I/O reaches about two thirds of its speed"
        return _SYSTEM.warning("huge pages", says, remedy)
    return _SYSTEM.ok("huge pages", f"{chosen}: the memory that copies land in gets them")


def _locked(soft_bytes: int, hard_bytes: int) -> Finding:
    def told(limit: int) -> str:
        return "no limit" if limit == resource.RLIM_INFINITY else mebibytes(limit)

    # Whether it is too small is found by trying: see the folder.
    return _SYSTEM.ok("locked memory", f"{told(soft_bytes)} (at most {told(hard_bytes)})")


def _mappings(most: int) -> Finding:
    says = f"{most:,} a process; a home in a file takes up to one"
    if most < _USUAL_MAPPINGS:
        return _SYSTEM.warning(
            "mappings", says, f"sysctl vm.max_map_count={_USUAL_MAPPINGS} (its usual value)"
        )
    return _SYSTEM.ok("mappings", says)
