"""The schedule of an update: what travels, in which order, within which bytes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from zcompile.ir import Role, Schedule, Target, Tier, peak_bytes, render, strip
from zcompile.optim.chunks import Member, Part
from zcompile.optim.program import Memo, Program, plan, window_bytes
from zcompile.passes.pipeline import PIPELINE, run_within_budget


def passes(schedule: Schedule, target: Target) -> Schedule:
    return run_within_budget(PIPELINE, schedule, target).schedule


def member(
    name: str,
    numel: int,
    group: int = 0,
    *,
    first: bool = False,
    homes: Mapping[str, Tier] | None = None,
) -> Member:
    def home(kind: str) -> Tier:
        return (homes or {}).get(kind, Tier.NVME)

    return Member(
        parts=(
            Part(name, Role.PARAMETER, home("param"), 4, written=True),
            Part(f"{name}:grad", Role.GRADIENT, home("grad"), 4, written=False),
            Part(f"{name}:exp_avg", Role.STATE, home("exp_avg"), 4, written=True, made=first),
        ),
        group=group,
        numel=numel,
        itemsize=4,
        temporaries=2,
        tails_differ=False,
        threads=1,
    )


def planned(members: tuple[Member, ...], target: Target | None = None) -> Program:
    return plan(members, passes, target or Target())


def test_what_travels_is_shown_and_the_rest_is_not() -> None:
    program = planned(
        (
            member("w", 1000, homes={"grad": Tier.HOST}),
            member("b", 8, homes={"exp_avg": Tier.DEVICE}),
        )
    )
    assert render(strip(program.schedule)) == (
        "schedule update\n"
        "value %w : 4000 B parameter @ nvme\n"
        "value %w:grad : 4000 B gradient @ host\n"
        "value %w:exp_avg : 4000 B state @ nvme\n"
        "value %b : 32 B parameter @ nvme\n"
        "value %b:grad : 32 B gradient @ nvme\n"
        "update bucket_0(%w, %w:grad, %w:exp_avg, %b, %b:grad) -> (%w, %w:exp_avg, %b) "
        "transient 8064 B\n"
        "arena 0 B\n"
    )


def test_new_states_are_made_and_not_fetched() -> None:
    program = planned((member("w", 1000, first=True),))
    text = render(program.schedule)
    assert "compute zeros_0() -> (%w:exp_avg) transient 4000 B" in text
    assert "fetch %w:exp_avg" not in text
    assert "offload %w:exp_avg -> nvme" in text


def test_what_is_updated_in_place_has_to_fit_and_counts() -> None:
    peaks: list[int] = []

    def noting(schedule: Schedule, target: Target) -> Schedule:
        made = passes(schedule, target)
        peaks.append(peak_bytes(made, target))
        return made

    stays: dict[str, Tier] = dict.fromkeys(("param", "grad", "exp_avg"), Tier.DEVICE)
    target = Target(device_budget=1 << 20, reserved_bytes=12_000)
    program = plan((member("w", 1000, homes=stays),), noting, target)
    assert program.in_place_bytes == program.working_bytes == 2 * 4000
    assert peaks == [12_000 + 2 * 4000]


def test_what_is_all_on_the_device_needs_no_schedule() -> None:
    stays: dict[str, Tier] = dict.fromkeys(("param", "grad", "exp_avg"), Tier.DEVICE)
    program = planned((member("w", 1000), member("b", 8, group=1, homes=stays)))
    assert (len(program.streamed), len(program.resident)) == (1, 1)
    alone = planned((member("b", 8, homes=stays),))
    assert not alone.streamed
    assert not alone.schedule.steps


@pytest.mark.parametrize("room_bytes", [50_000, 200_000, 1_000_000, 100_000_000])
@pytest.mark.parametrize("first", [False, True])
def test_the_budget_holds(room_bytes: int, first: bool) -> None:
    members = tuple(
        member(f"w{at}", numel, first=first) for at, numel in enumerate((300_000, 7, 50_001, 90))
    )
    target = Target(device_budget=5000 + room_bytes, reserved_bytes=5000)
    schedule = planned(members, target).schedule
    assert peak_bytes(schedule, target) <= 5000 + room_bytes
    assert max(value.nbytes for value in schedule.values) <= window_bytes(target)


def test_planning_again_needs_a_reason() -> None:
    memo, target = Memo(), Target(device_budget=1 << 20)
    planned: list[Schedule] = []

    def recording(schedule: Schedule, target: Target) -> Schedule:
        planned.append(passes(schedule, target))
        return planned[-1]

    members = (member("w", 1000), member("b", 8))
    first = memo.program_for(members, recording, target)
    again = memo.program_for((member("w", 1000), member("b", 8)), recording, target)
    assert again is first
    assert len(planned) == 1
    memo.program_for(members[:1], recording, target)
    memo.program_for(members[:1], recording, Target(device_budget=1 << 19))
    assert len(planned) == 3
