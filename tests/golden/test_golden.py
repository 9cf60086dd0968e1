"""Golden schedules: passes, a target, what goes in, a line ``---``, and what comes out.

A file's header names the passes in the text form of a pipeline and the target as
``option=number`` and ``%value=tier``.  Of a machine it says how many seconds each kernel takes
(``kernel_s``) and how many bytes each channel moves in a second (``bytes_per_s``).
``ZINF_ACCEPT=1 pytest tests/golden`` rewrites what comes out; then read the diff.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from zcompile.ir import (
    KERNELS,
    Channel,
    Hardware,
    Link,
    Schedule,
    Target,
    Tier,
    kernel_name,
    parse,
    render,
    verify,
)
from zcompile.passes.base import run
from zcompile.passes.deadline import Deadline
from zcompile.passes.pipeline import PIPELINE, parse_pipeline
from zcompile.passes.vacate import Vacate

FILES = sorted(Path(__file__).parent.rglob("*.sched"))


def header(text: str, key: str) -> str:
    (found,) = (line for line in text.splitlines() if line.startswith(f"# {key}:"))
    return found.partition(":")[2].strip()


def target_of(text: str, schedule: Schedule) -> Target:
    words = dict(word.split("=") for word in text.split())
    homes = {name[1:]: Tier(tier) for name, tier in words.items() if name.startswith("%")}
    numbers = {name: int(words[name]) for name in words if not name.startswith("%")}
    target = Target(
        device_budget=numbers.pop("device_budget", None),
        host_budget=numbers.pop("host_budget", None),
        reserved_bytes=numbers.pop("reserved_bytes", 0),
        homes=homes,
    )
    if "kernel_s" in numbers:
        target = timed(target, schedule, numbers.pop("kernel_s"), numbers.pop("bytes_per_s"))
    assert not numbers, f"a target has no {list(numbers)}"
    return target


def timed(target: Target, schedule: Schedule, kernel_s: int, bytes_per_s: int) -> Target:
    machine = Hardware(
        name="golden",
        source="made up",
        capacities={},
        links={channel: Link(bandwidth_bytes_per_s=bytes_per_s) for channel in Channel},
        flops_per_s={},
        memory_bytes_per_s=1.0,
    )
    kernels = {kernel_name(step): kernel_s for step in schedule.steps if isinstance(step, KERNELS)}
    return replace(target, hardware=machine, kernel_seconds={schedule.name: kernels})


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_golden(path: Path) -> None:
    source, _, expected = path.read_text().partition("---\n")
    schedule = parse(source)
    target = target_of(header(source, "target"), schedule)
    stages = run(parse_pipeline(header(source, "pass")), schedule, target)
    after = stages[-1].after
    if os.environ.get("ZINF_ACCEPT"):
        path.write_text(f"{source}---\n{render(after)}")
        expected = render(after)
    assert render(after) == expected, "\n".join(stage.diff() for stage in stages)
    if stages[-1].name not in ("place", "stream"):
        verify(after, target)


def test_every_pass_has_a_golden_file() -> None:
    assert {each.name for each in (*PIPELINE, Deadline(), Vacate())} <= {
        path.parent.name for path in FILES
    }
    for path in FILES:
        passes = parse_pipeline(header(path.read_text(), "pass"))
        assert path.parent.name == "pipeline" or passes[-1].name == path.parent.name
