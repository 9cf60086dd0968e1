"""The contract of each pass, for every schedule."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import captured, layers, many, placed
from zcompile.ir import (
    Compute,
    Fetch,
    Offload,
    Release,
    Rule,
    Schedule,
    ScheduleError,
    Step,
    Target,
    Tier,
    Update,
    Wait,
    device_profile,
    footprint,
    operands,
    parse,
    peak_bytes,
    strip,
    verify,
)
from zcompile.ir import given as given_values
from zcompile.passes.base import OFFLOADED, PLACED, STREAMED, Pass, rules_given, run
from zcompile.passes.defer import Defer
from zcompile.passes.keep import Keep
from zcompile.passes.lean import lean_peak, lean_plan, static_lean_peak
from zcompile.passes.offload import Offload as OffloadPass
from zcompile.passes.pack import Pack
from zcompile.passes.place import Place
from zcompile.passes.prefetch import Prefetch
from zcompile.passes.stream import Stream
from zcompile.passes.vacate import Vacate

spare_bytes = st.integers(0, 200_000)


def lean(schedule: Schedule, *, vacating: bool = False) -> Schedule:
    """The lean plan, not packed: what the optional passes start from."""
    plan = OffloadPass()(Stream()(schedule, Target()), Target())
    return Vacate()(plan, Target()) if vacating else plan


def counted(steps: tuple[Step, ...]) -> Counter[Step]:
    return Counter(steps)


def budget(lean: Schedule, spare: int) -> Target:
    """A budget that ``lean`` keeps once it is packed, and ``spare`` bytes more."""
    return Target(device_budget=peak(lean) + spare)


def peak(schedule: Schedule) -> int:
    """What a packing without holes would hold."""
    if schedule.vacates:
        return peak_bytes(schedule, Target())
    held = footprint(schedule)
    return max(held.ordinary, default=0) + max(held.arena, default=0)


@many
@given(captured, st.sampled_from(Tier))
def test_place(schedule: Schedule, tier: Tier) -> None:
    managed = [value.name for value in schedule.values if value.role in ("parameter", "gradient")]
    after = Place()(schedule, Target(homes=dict.fromkeys(managed, tier)))
    assert after.steps == schedule.steps
    for before, value in zip(schedule.values, after.values, strict=True):
        if value.name in managed:
            assert value == replace(before, home=tier, held=tier is Tier.DEVICE)
        elif value.role in ("input", "intermediate"):
            assert value == before
    assert Place()(after, Target()) == after


@many
@given(placed)
def test_stream(schedule: Schedule) -> None:
    after = Stream()(schedule, Target())
    verify(after, captured=schedule, rules=rules_given({PLACED, STREAMED}))
    assert strip(after) == strip(schedule)
    away = {value.name for value in schedule.values if value.home is not Tier.DEVICE}
    for step in schedule.steps:
        assert isinstance(step, Compute | Update)
        needed = away.intersection(operands(step)) & given_values(schedule)
        at = after.steps.index(step)
        waited = set[str]()
        while isinstance(wait := after.steps[at - len(waited) - 1], Wait):
            waited.add(wait.value)
        assert waited == needed
    assert sum(isinstance(step, Release) for step in after.steps) == sum(
        isinstance(step, Fetch) for step in after.steps
    )


@many
@given(placed)
def test_offload(schedule: Schedule) -> None:
    before = Stream()(schedule, Target())
    after = OffloadPass()(before, Target())
    verify(after, captured=schedule)
    written = {name for step in strip(schedule).steps for name in _writes(step)}
    away = {value.name for value in schedule.values if value.home is not Tier.DEVICE}
    offloaded = [step.value for step in after.steps if isinstance(step, Offload)]
    assert set(offloaded) == written & away
    fetches = [step for step in after.steps if isinstance(step, Fetch)]
    assert fetches == [step for step in before.steps if isinstance(step, Fetch)]


def _writes(step: Step) -> tuple[str, ...]:
    return step.writes if isinstance(step, Compute | Update) else ()


@many
@given(placed, st.booleans(), spare_bytes, st.integers(0, 100))
def test_keep(schedule: Schedule, vacating: bool, spare: int, percent: int) -> None:
    before = lean(schedule, vacating=vacating)
    target = budget(before, spare)
    after = Keep(percent)(before, target)
    verify(after, captured=schedule)
    assert peak(after) <= peak(before) + spare * percent // 100
    gone = counted(before.steps) - counted(after.steps)
    assert not counted(after.steps) - counted(before.steps)
    fetches = sum(isinstance(step, Fetch) for step in gone.elements())
    assert Counter(type(step) for step in gone.elements()) == Counter(
        {Fetch: fetches, Wait: fetches, Release: fetches}
    )


@many
@given(placed, st.booleans(), st.integers(0, 4), spare_bytes, st.integers(0, 100))
def test_defer(schedule: Schedule, vacating: bool, kernels: int, spare: int, percent: int) -> None:
    before = lean(schedule, vacating=vacating)
    target = budget(before, spare)
    after = Defer(kernels, percent)(before, target)
    verify(after, captured=schedule)
    assert counted(after.steps) == counted(before.steps)
    assert peak(after) <= peak(before) + spare * percent // 100
    for ticket, distance in _release_distances(after).items():
        assert distance <= _release_distances(before)[ticket] + kernels


def _release_distances(schedule: Schedule) -> dict[int, int]:
    """How many kernels lie before each release that waits, by the ticket of its offload."""
    found: dict[int, int] = {}
    kernels = 0
    for step in schedule.steps:
        kernels += isinstance(step, Compute | Update)
        if isinstance(step, Release) and step.after is not None:
            found[step.after] = kernels
    return found


@many
@given(
    placed,
    st.booleans(),
    st.integers(0, 4),
    st.integers(0, 200_000),
    spare_bytes,
    st.integers(0, 100),
)
def test_prefetch(
    schedule: Schedule, vacating: bool, kernels: int, ahead: int, spare: int, percent: int
) -> None:
    before = lean(schedule, vacating=vacating)
    target = budget(before, spare)
    after = Prefetch(kernels, ahead, percent)(before, target)
    verify(after, captured=schedule)
    assert counted(after.steps) == counted(before.steps)
    assert peak(after) <= peak(before) + spare * percent // 100
    for tier in Tier:
        assert _queue(after, tier) == _queue(before, tier)
    for distance in _fetch_distances(after).values():
        assert distance <= kernels


def _queue(schedule: Schedule, tier: Tier) -> list[Step]:
    return [step for step in schedule.steps if isinstance(step, Fetch) and step.src is tier]


def _fetch_distances(schedule: Schedule) -> dict[int, int]:
    """How many kernels lie between each fetch and its wait."""
    found: dict[int, int] = {}
    kernels = 0
    for step in schedule.steps:
        kernels += isinstance(step, Compute | Update)
        if isinstance(step, Fetch):
            found[step.ticket] = -kernels
        elif isinstance(step, Wait):
            found[step.ticket] += kernels
    return found


@many
@given(placed, st.booleans(), spare_bytes)
def test_pack(schedule: Schedule, vacating: bool, spare: int) -> None:
    leanest = lean(schedule, vacating=vacating)
    target = budget(leanest, spare)
    before = Prefetch()(Defer()(Keep()(leanest, target), target), target)
    after = Pack()(before, target)
    verify(after, captured=schedule)
    unplaced = [
        replace(step, offset=None) if isinstance(step, Fetch) else step for step in after.steps
    ]
    assert tuple(unplaced) == before.steps
    ends = [0]
    sizes = {value.name: -(-value.nbytes // 4096) * 4096 for value in schedule.values}
    for step in after.steps:
        if isinstance(step, Fetch):
            assert step.offset is not None
            ends.append(step.offset + sizes[step.value])
    assert after.arena_bytes == max(ends)


@many
@given(placed)
def test_the_lean_plan_packs_without_holes(schedule: Schedule) -> None:
    plan = lean_plan(schedule, Target())
    assert plan.vacates
    assert plan.arena_bytes == max(footprint(plan).arena, default=0)
    assert peak_bytes(plan, Target()) == lean_peak(schedule, Target())
    static = replace(plan, vacates=False)
    assert peak_bytes(static, Target()) == static_lean_peak(schedule, Target())
    assert lean_peak(schedule, Target()) <= static_lean_peak(schedule, Target())


@many
@given(placed)
def test_vacate(schedule: Schedule) -> None:
    before = lean(schedule)
    after = Vacate()(before, Target())
    verify(after, captured=schedule)
    assert after == replace(before, vacates=True)


@many
@given(placed, st.booleans(), spare_bytes)
def test_no_pass_holds_more_than_the_kernels_around_it(
    schedule: Schedule, vacating: bool, spare: int
) -> None:
    # Note [Gaps hold no more than kernels] in passes/room.py.
    leanest = lean(schedule, vacating=vacating)
    target = budget(leanest, spare)
    plan = Prefetch()(Defer()(Keep()(leanest, target), target), target)
    profile = device_profile(plan, Target())
    kernels = [at for at, step in enumerate(plan.steps) if isinstance(step, Compute | Update)]
    at_kernels = [profile[at] for at in kernels]
    for at, held in enumerate(profile):
        before = max((i for i in range(len(kernels)) if kernels[i] <= at), default=0)
        around = at_kernels[before : before + 2]
        assert held <= max(around)


SPENDERS: tuple[Pass, ...] = (
    Keep(),
    Defer(),
    Defer(kernels=9, spare_percent=100),
    Prefetch(),
    Prefetch(distance_kernels=9, distance_bytes=1 << 40),
)


@pytest.mark.parametrize("vacating", [False, True])
@pytest.mark.parametrize("each", SPENDERS)
def test_without_spare_bytes_no_peak_rises(each: Pass, vacating: bool) -> None:
    before = lean(layers(40), vacating=vacating)
    after = each(before, budget(before, 0))
    assert peak(after) == peak(before)


@pytest.mark.parametrize("vacating", [False, True])
@pytest.mark.parametrize("each", SPENDERS)
def test_over_the_budget_a_pass_still_does_no_harm(each: Pass, vacating: bool) -> None:
    before = lean(layers(40), vacating=vacating)
    after = each(before, Target(device_budget=1))
    assert peak(after) == peak(before)


@pytest.mark.parametrize("each", SPENDERS)
def test_without_a_budget_room_is_endless(each: Pass) -> None:
    schedule = layers(40)
    verify(each(lean(schedule), Target()), captured=schedule)


def test_keep_takes_the_shortest_gap_first() -> None:
    plan = Keep(spare_percent=100)(lean(layers(12)), Target(device_budget=1))
    fetched = Counter(step.value for step in plan.steps if isinstance(step, Fetch))
    assert fetched["embedding"] == 2  # from the first kernel to the last
    assert fetched["b0"] == 1  # read by the first five in a row: no byte more at any kernel


APART = parse("""\
schedule s
value %w : 4096 B parameter @ nvme
value %u : 4096 B parameter @ nvme
value %y : 8 B intermediate @ device
compute far(%w) -> () transient 0 B
compute busy() -> (%y) transient 8192 B
compute near(%u) -> () transient 0 B
output %y
""")


@pytest.mark.parametrize(
    ("vacating", "spare", "distance"), [(False, 0, 1), (True, 0, 0), (True, 4096, 2)]
)
def test_a_vacated_arena_and_ordinary_memory_share_what_is_spare(
    vacating: bool, spare: int, distance: int
) -> None:
    before = lean(APART, vacating=vacating)
    assert peak(before) == 8192 + (0 if vacating else 4096)
    plan = Prefetch()(before, budget(before, spare))
    # Beside the busy kernel a static arena is there anyway.
    assert max(_fetch_distances(plan).values()) == distance


def test_a_value_larger_than_the_distance_is_prefetched() -> None:
    plan = Prefetch(distance_kernels=2, distance_bytes=16 << 20)(lean(layers(12)), Target())
    (*_, last) = (
        step for step in plan.steps if isinstance(step, Fetch) and step.value == "embedding"
    )
    assert _fetch_distances(plan)[last.ticket] == 2


def test_two_buckets_are_two_buffers() -> None:
    values = [f"value %p{i} : 4096 B parameter @ nvme" for i in range(4)]
    updates = [f"update b{i}(%p{i}) -> (%p{i}) transient 0 B" for i in range(4)]
    schedule = parse("\n".join(["schedule update", *values, *updates]))
    target = Target(device_budget=8192)
    plan = Prefetch()(Defer(kernels=1, spare_percent=100)(lean(schedule), target), target)
    # The next bucket is on its way in before the last one is waited for on its way out.
    words = [type(step).__name__ for step in plan.steps]
    start = ["Fetch", "Fetch", "Wait", "Update", "Offload", "Wait"]
    one = ["Update", "Offload", "Release", "Fetch", "Wait"]
    assert words == [*start, *one, *one, "Update", "Offload", "Release", "Release"]


def test_an_option_out_of_range() -> None:
    with pytest.raises(ValueError, match="keep: spare_percent=101 must be from 0 to 100"):
        Keep(101)
    with pytest.raises(ValueError, match="defer: kernels=-1 must not be negative"):
        Defer(-1)
    with pytest.raises(ValueError, match="prefetch: distance_kernels=-1 must not"):
        Prefetch(-1)
    with pytest.raises(ValueError, match="prefetch: distance_bytes=-1 must not"):
        Prefetch(1, -1)


def test_the_runner_verifies_around_each_pass() -> None:
    schedule = layers(3)
    with pytest.raises(ScheduleError) as error:
        run([OffloadPass()], schedule, Target())
    assert error.value.rule is Rule.RESIDENT
    stages = run([Place(), Stream(), OffloadPass()], schedule, Target())
    assert [stage.name for stage in stages] == ["place", "stream", "offload"]
    assert stages[0].before == schedule
    assert stages[1].before is stages[0].after
    assert rules_given({PLACED, STREAMED, OFFLOADED}) | {Rule.BUDGET} == frozenset(Rule)


def test_a_stage_shows_its_diff() -> None:
    (stage,) = run([Stream()], layers(1), Target())
    assert "+fetch %w0 <- nvme as t0" in stage.diff().splitlines()
    (same,) = run([Place()], layers(1), Target())
    assert same.diff() == ""
