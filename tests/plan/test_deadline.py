"""Deadline: as late as hidden, as early as room allows, and never slower than the plain passes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.iterations import MACHINE, seconds_of
from tests.plan.schedules import layers, many, placed
from tests.plan.test_passes import lean, peak
from zcompile.ir import Channel, Compute, Fetch, Link, Release, Schedule, Target, parse, verify
from zcompile.passes.deadline import Deadline
from zcompile.passes.pipeline import PIPELINE, TIMED, run_fastest, run_within_budget
from zcompile.passes.placement import managed_values
from zcompile.passes.simulate import simulate

PAGE = 4096
A_PAGE_A_SECOND = replace(
    MACHINE,
    links={channel: Link(bandwidth_bytes_per_s=PAGE) for channel in Channel},
    compute_uses=(),
    update_uses=(),
)


def timed(schedule: Schedule, seconds: float, budget: int | None) -> Target:
    kernels = seconds_of([schedule], seconds)
    return Target(
        device_budget=budget, has_nvme=True, hardware=A_PAGE_A_SECOND, kernel_seconds=kernels
    )


@many
@given(placed, st.booleans(), st.integers(0, 200_000), st.sampled_from([0.0, 0.5, 20.0]))
def test_deadline(schedule: Schedule, vacating: bool, spare: int, seconds: float) -> None:
    before = lean(schedule, vacating=vacating)
    target = timed(schedule, seconds, peak(before) + spare)
    after = Deadline()(before, target)
    verify(after, captured=schedule)
    assert peak(after) <= peak(before) + spare
    assert Counter(after.steps) == Counter(before.steps)
    for tier in ("host", "nvme"):
        queues = [
            [step for step in each.steps if isinstance(step, Fetch) and step.src == tier]
            for each in (before, after)
        ]
        assert queues[0] == queues[1]
    assert Deadline()(before, target) == after


@many
@given(placed, st.integers(0, 200_000), st.sampled_from([0.0, 0.5, 20.0]))
def test_the_fastest_is_no_slower_than_the_plain_pipeline(
    schedule: Schedule, spare: int, seconds: float
) -> None:
    homes = {value.name: value.home for value in managed_values([schedule])}
    target = timed(schedule, seconds, peak(lean(schedule)) + spare)
    target = replace(target, homes=homes)
    plan = run_fastest(TIMED, schedule, target)
    plain = run_within_budget(PIPELINE, schedule, target)
    taken, before = (
        simulate([each.schedule], target.kernel_seconds, A_PAGE_A_SECOND).seconds
        for each in (plan, plain)
    )
    assert taken <= before
    assert min(each.seconds for each in plan.tried) == taken
    assert len(plan.tried) == len(TIMED)


SIX = parse("""\
schedule six
value %w : 8192 B parameter @ nvme
value %g : 4096 B gradient @ nvme
compute k0() -> (%g) transient 4096 B
compute k1() -> () transient 0 B
compute k2() -> () transient 0 B
compute k3() -> () transient 0 B
compute k4(%w) -> () transient 0 B
compute k5() -> () transient 0 B
output %g
""")


def gaps(schedule: Schedule, kind: type[Fetch] | type[Release], value: str) -> list[int]:
    """Return how many kernels lie before each step of that kind on ``value``."""
    passed = 0
    found: list[int] = []
    for step in schedule.steps:
        passed += isinstance(step, Compute)
        if isinstance(step, kind) and step.value == value:
            found.append(passed)
    return found


def test_a_fetch_starts_as_late_as_it_is_hidden() -> None:
    # Two pages take two seconds; the kernel that needs them begins after four.
    plan = Deadline()(lean(SIX), timed(SIX, 1.0, None))
    assert gaps(plan, Fetch, "w") == [1]  # the margin asks for a little more than two kernels
    assert gaps(plan, Release, "g") == [2]  # a second after the kernel that made it


def test_what_cannot_be_hidden_starts_at_once() -> None:
    plan = Deadline()(lean(SIX), timed(SIX, 0.1, None))
    assert gaps(plan, Fetch, "w") == [0]


def test_without_room_a_fetch_starts_as_early_as_there_is_some() -> None:
    crowded = parse(
        "\n".join(
            [
                *("schedule crowded", "value %u : 8192 B parameter @ nvme"),
                *("value %w : 8192 B parameter @ nvme", "compute k0() -> () transient 0 B"),
                *("compute k1(%u) -> () transient 0 B", "compute k2() -> () transient 0 B"),
                "compute k3(%w) -> () transient 0 B",
            ]
        )
    )
    plan = Deadline()(lean(crowded), timed(crowded, 0.1, 8192))
    assert gaps(plan, Fetch, "u") == [0]
    assert gaps(plan, Fetch, "w") == [2]
    assert gaps(Deadline()(lean(crowded), timed(crowded, 0.1, 16384)), Fetch, "w") == [0]


def test_it_says_what_is_missing() -> None:
    schedule = layers(3)
    with pytest.raises(ValueError, match="deadline: the target has no hardware"):
        Deadline()(lean(schedule), Target())
    with pytest.raises(ValueError, match="no time is known for the kernel 'k0'"):
        Deadline()(lean(schedule), Target(hardware=MACHINE))
    with pytest.raises(ValueError, match="the target has no hardware to compare plans by"):
        run_fastest(TIMED, schedule, Target())
    seconds = seconds_of([schedule], 1.0)
    none = replace(MACHINE, links={})
    with pytest.raises(ValueError, match="one disk: has no link nvme_read, which the plan uses"):
        Deadline()(lean(schedule), Target(hardware=none, kernel_seconds=seconds))
