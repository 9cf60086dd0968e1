"""The verifier against schedules that are wrong by one step.

Whatever it accepts must be shown to compute the same and to hold no more, by running it on
names with copies as early and as late as they may be (`tests.plan.adversary`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plan.adversary import bytes_at_kernels, captured_outcome, outcomes
from tests.plan.schedules import many, placed
from zcompile.ir import (
    PAGE_BYTES,
    Fetch,
    Offload,
    Release,
    Schedule,
    ScheduleError,
    Target,
    Wait,
    strip,
    verify,
)
from zcompile.passes.lean import lean_peak
from zcompile.passes.pipeline import PIPELINE, run_within_budget

spare_bytes = st.integers(0, 200_000)


def plan_of(schedule: Schedule, spare: int) -> Schedule:
    target = Target(device_budget=lean_peak(schedule, Target()) + spare)
    return run_within_budget(PIPELINE, schedule, target).schedule


def without_one_dependency(schedule: Schedule) -> Iterator[Schedule]:
    """Take out each wait and each release, and the offload that each release waits for."""
    steps = schedule.steps
    for at, step in enumerate(steps):
        if isinstance(step, Wait | Release):
            yield schedule.with_steps((*steps[:at], *steps[at + 1 :]))
        if isinstance(step, Release) and step.after is not None:
            loose = replace(step, after=None)
            yield schedule.with_steps((*steps[:at], loose, *steps[at + 1 :]))


def with_one_step_out_of_place(schedule: Schedule) -> Iterator[Schedule]:
    """Swap each wait with the step after it, and each release with the step before it."""
    for at, step in enumerate(schedule.steps):
        if isinstance(step, Wait) and at + 1 < len(schedule.steps):
            yield swapped(schedule, at)
        if isinstance(step, Release) and at > 0:
            yield swapped(schedule, at - 1)


def swapped(schedule: Schedule, at: int) -> Schedule:
    steps = list(schedule.steps)
    steps[at], steps[at + 1] = steps[at + 1], steps[at]
    return schedule.with_steps(tuple(steps))


def is_caught(mutant: Schedule) -> bool:
    try:
        verify(mutant)
    except ScheduleError:
        return True
    return False


@many
@given(placed, spare_bytes)
def test_no_dependency_can_be_taken_out(schedule: Schedule, spare: int) -> None:
    for mutant in without_one_dependency(plan_of(schedule, spare)):
        assert is_caught(mutant)


@settings(many, max_examples=40)
@given(placed, spare_bytes)
def test_a_step_out_of_place_is_caught_or_makes_no_difference(
    schedule: Schedule, spare: int
) -> None:
    plan = plan_of(schedule, spare)
    results, held = outcomes(plan), bytes_at_kernels(plan)
    for mutant in with_one_step_out_of_place(plan):
        if not is_caught(mutant):
            assert outcomes(mutant) == results
            fewer = zip(bytes_at_kernels(mutant), held, strict=True)
            assert all(ours <= theirs for ours, theirs in fewer)


@many
@given(placed, spare_bytes)
def test_a_plan_computes_what_was_captured(schedule: Schedule, spare: int) -> None:
    expected = captured_outcome(schedule)
    assert outcomes(plan_of(schedule, spare)) == [expected] * 4


@settings(many, max_examples=200)
@given(placed, spare_bytes, st.data())
def test_whatever_the_verifier_accepts_computes_the_same(
    schedule: Schedule, spare: int, data: st.DataObject
) -> None:
    mutant = plan_of(schedule, spare)
    for _ in range(data.draw(st.integers(1, 3))):
        mutant = edited(mutant, data)
    if not is_caught(mutant) and strip(mutant) == strip(schedule):
        assert outcomes(mutant) == [captured_outcome(schedule)] * 4


def edited(schedule: Schedule, data: st.DataObject) -> Schedule:
    """Take out, swap or change one step, any that is there."""
    if len(schedule.steps) < 2:
        return schedule
    at = data.draw(st.integers(0, len(schedule.steps) - 2))
    step = schedule.steps[at]
    before, after = schedule.steps[:at], schedule.steps[at + 1 :]
    match data.draw(st.sampled_from(["take out", "swap", "change"])), step:
        case "take out", Fetch() | Wait() | Offload() | Release():
            return schedule.with_steps((*before, *after))
        case "change", Release():
            return schedule.with_steps((*before, replace(step, after=None), *after))
        case "change", Fetch():
            pages = schedule.arena_bytes // PAGE_BYTES
            moved = replace(step, offset=data.draw(st.integers(0, pages)) * PAGE_BYTES)
            return schedule.with_steps((*before, moved, *after))
        case _:
            return swapped(schedule, at)
