"""The whole pipeline: its text, its order, its budget, and that it is a function."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.plan.renaming import renamed
from tests.plan.schedules import layers, many, placed
from zcompile.ir import (
    Compute,
    Fetch,
    Rule,
    Schedule,
    ScheduleError,
    Target,
    Value,
    footprint,
    parse,
    render,
    verify,
)
from zcompile.passes.base import Pass
from zcompile.passes.defer import Defer
from zcompile.passes.keep import Keep
from zcompile.passes.lean import lean_peak, lean_plan, static_lean_peak
from zcompile.passes.offload import Offload as OffloadPass
from zcompile.passes.pack import Pack
from zcompile.passes.pipeline import (
    PIPELINE,
    build_pipeline,
    check_order,
    ladder,
    parse_pipeline,
    render_pipeline,
    run_within_budget,
    without,
)
from zcompile.passes.place import Place
from zcompile.passes.prefetch import Prefetch
from zcompile.passes.stream import Stream
from zcompile.passes.vacate import Vacate

percents = st.integers(0, 100)
passes = st.one_of(
    st.just(Place()),
    st.just(Stream()),
    st.just(OffloadPass()),
    st.just(Pack()),
    st.just(Vacate()),
    st.builds(Keep, percents),
    st.builds(Defer, st.integers(0, 9), percents),
    st.builds(Prefetch, st.integers(0, 9), st.integers(0, 1 << 40), percents),
)


@many
@given(st.lists(passes, min_size=1, max_size=7).map(tuple))
def test_a_pipeline_that_is_printed_parses_back(pipeline: tuple[Pass, ...]) -> None:
    assert parse_pipeline(render_pipeline(pipeline)) == pipeline


def test_options_that_are_not_given_have_their_defaults() -> None:
    text = "place, stream,offload , keep,defer{kernels=1}, prefetch{ spare_percent=7 },pack"
    assert parse_pipeline(text) == (
        *(Place(), Stream(), OffloadPass(), Keep()),
        *(Defer(kernels=1), Prefetch(spare_percent=7), Pack()),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("place,teleport", "'teleport' is no pass; the passes are place, stream,"),
        ("", "'' is no pass"),
        ("place,,stream", "'' is no pass"),
        ("keep{percent=1}", "keep: 'percent=1' is no option; it takes spare_percent=NUMBER"),
        ("keep{spare_percent=many}", "keep: 'spare_percent=many' is no option"),
        ("keep{spare_percent=-1}", "keep: 'spare_percent=-1' is no option"),
        ("keep{spare_percent=101}", "keep: spare_percent=101 must be from 0 to 100"),
        ("pack{x=1}", "pack: 'x=1' is no option; it takes nothing"),
        ("keep{spare_percent=1", "is no pass"),
    ],
)
def test_a_pipeline_that_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_pipeline(text)


def test_the_pipeline_is_in_order() -> None:
    check_order(PIPELINE)
    assert build_pipeline() == PIPELINE
    assert build_pipeline(render_pipeline(PIPELINE)) == PIPELINE


@pytest.mark.parametrize(
    ("pipeline", "why"),
    [
        (PIPELINE[1:], r"stream needs \['placed'\], which no earlier pass gives"),
        ((Place(), OffloadPass()), r"offload needs \['streamed'\]"),
        (PIPELINE[:-1], r"no pass gives \['packed'\]"),
        ((*PIPELINE, Prefetch()), "prefetch comes after the arena was packed"),
        ((), "the pipeline ends"),
    ],
)
def test_a_wrong_order_is_refused(pipeline: tuple[Pass, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_order(pipeline)
    with pytest.raises(ValueError, match=why):
        run_within_budget(pipeline, layers(1), Target())


def test_passes_are_left_out_by_name() -> None:
    assert without(PIPELINE, ["keep", "prefetch"]) == (
        *(Place(), Stream(), OffloadPass(), Defer(), Pack()),
    )
    assert build_pipeline(skip=["defer"]) == without(PIPELINE, ["defer"])
    with pytest.raises(ValueError, match="'teleport' is no pass to skip; there is place,"):
        without(PIPELINE, ["teleport"])
    with pytest.raises(ValueError, match="needs"):
        build_pipeline(skip=["stream"])


def test_the_ladder_ends_with_the_lean_pipeline() -> None:
    first, second, *_, lean_static, vacating, last = ladder(PIPELINE)
    assert first == PIPELINE
    assert [each for each in second if isinstance(each, Prefetch)] == [Prefetch(spare_percent=90)]
    assert lean_static == (Place(), Stream(), OffloadPass(), Pack())
    assert vacating == (*PIPELINE[:3], Vacate(), *PIPELINE[3:])
    assert last == (Place(), Stream(), OffloadPass(), Vacate(), Pack())
    assert ladder(last) == (last,)
    assert ladder(lean_static) == (lean_static, last)


@many
@given(placed, st.integers(0, 300_000))
def test_an_arena_is_vacated_exactly_where_no_static_plan_fits(
    schedule: Schedule, spare: int
) -> None:
    target = Target(device_budget=lean_peak(schedule, Target()) + spare)
    plan = run_within_budget(PIPELINE, schedule, target)
    least = static_lean_peak(schedule, Target())
    assert plan.schedule.vacates == (least > (target.device_budget or 0))
    if plan.schedule.vacates:  # no static plan is even tried, and holes take no memory
        assert plan.pipeline == "place,stream,offload,vacate" + render_pipeline(
            PIPELINE
        ).removeprefix("place,stream,offload")
        assert plan.rejected == ()


def test_a_pipeline_may_vacate_from_the_start() -> None:
    pipeline = build_pipeline("place,stream,offload,vacate,prefetch,pack")
    plan = run_within_budget(pipeline, layers(3), Target(device_budget=1 << 40))
    assert plan.pipeline == render_pipeline(pipeline)
    assert plan.schedule.vacates


@many
@given(placed, st.integers(0, 300_000), st.integers(0, 9000))
def test_the_budget_is_kept_whenever_the_lean_plan_keeps_it(
    schedule: Schedule, spare: int, reserved: int
) -> None:
    target = Target(reserved_bytes=reserved)
    target = replace(target, device_budget=lean_peak(schedule, target) + spare)
    plan = run_within_budget(PIPELINE, schedule, target)
    verify(plan.schedule, target, captured=schedule)


@many
@given(placed)
def test_a_budget_that_is_too_small_is_refused(schedule: Schedule) -> None:
    least = lean_peak(schedule, Target())
    assume(least > 0)
    with pytest.raises(ScheduleError) as error:
        run_within_budget(PIPELINE, schedule, Target(device_budget=least - 1))
    assert error.value.rule is Rule.BUDGET


def test_where_packing_leaves_holes_a_leaner_pipeline_is_used() -> None:
    schedule = layers(30)
    target = Target(device_budget=static_lean_peak(schedule, Target()) + (14 << 20))
    plan = run_within_budget(PIPELINE, schedule, target)
    verify(plan.schedule, target, captured=schedule)
    tried = [each.pipeline for each in plan.rejected]
    assert tried[0] == render_pipeline(PIPELINE)
    rungs = [render_pipeline(each) for each in ladder(PIPELINE)]
    assert [*tried, plan.pipeline] == rungs[: len(tried) + 1]
    assert all(each.peak_bytes > (target.device_budget or 0) for each in plan.rejected)


def test_a_plan_keeps_every_stage() -> None:
    plan = run_within_budget(PIPELINE, layers(5), Target())
    assert [stage.name for stage in plan.stages] == [each.name for each in PIPELINE]
    assert plan.pipeline == render_pipeline(PIPELINE)
    assert plan.schedule is plan.stages[-1].after
    for earlier, later in zip(plan.stages, plan.stages[1:], strict=False):
        assert later.before is earlier.after


def test_the_host_budget_is_kept_or_the_plan_refused() -> None:
    schedule = parse("schedule s\nvalue %p : 100 B parameter @ host\n")
    schedule = schedule.with_steps((Compute("k", ("p",), ()),))
    run_within_budget(PIPELINE, schedule, Target(host_budget=4096))
    with pytest.raises(ScheduleError, match="over the host_budget"):
        run_within_budget(PIPELINE, schedule, Target(host_budget=4095))


@many
@given(placed, st.integers(0, 100_000))
def test_the_same_input_gives_the_same_bytes(schedule: Schedule, spare: int) -> None:
    target = Target(device_budget=lean_peak(schedule, Target()) + spare)
    first = run_within_budget(PIPELINE, schedule, target)
    again = run_within_budget(PIPELINE, parse(render(schedule)), target)
    assert render(first.schedule) == render(again.schedule)
    assert first == again


@many
@given(placed, st.integers(0, 100_000))
def test_names_do_not_matter(schedule: Schedule, spare: int) -> None:
    target = Target(device_budget=lean_peak(schedule, Target()) + spare)
    names = [value.name for value in schedule.values]
    new = dict(zip(names, (f"n{-i % 7}.{i}" for i in range(len(names))), strict=True))
    plan = run_within_budget(PIPELINE, schedule, target).schedule
    other = run_within_budget(PIPELINE, renamed(schedule, new), target).schedule
    assert other == renamed(plan, new)


def test_ten_thousand_steps_are_planned() -> None:
    schedule = layers(1200)
    target = Target(device_budget=int(1.2 * static_lean_peak(schedule, Target())))
    plan = run_within_budget(PIPELINE, schedule, target).schedule
    assert len(plan.steps) > 10_000
    held = footprint(plan)
    assert plan.arena_bytes <= 1.1 * max(held.arena)


def test_the_lean_pipeline_gives_the_lean_plan() -> None:
    schedule = layers(30)
    plan = run_within_budget(ladder(PIPELINE)[-1], schedule, Target())
    assert plan.schedule == lean_plan(schedule, Target())


def test_values_that_nobody_touches_do_no_harm() -> None:
    idle = Value("idle", 1 << 40, layers(1).values[1].role, layers(1).values[1].home)
    schedule = replace(layers(2), values=(*layers(2).values, idle))
    plan = run_within_budget(PIPELINE, schedule, Target(device_budget=1 << 30))
    assert not any(isinstance(s, Fetch) and s.value == "idle" for s in plan.schedule.steps)
