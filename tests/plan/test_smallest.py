"""The smallest budget is one that works, and none that is smaller does."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import many, models
from tests.plan.small_models import PARAMETER, Model, attempt, linear, pins, small
from zcompile.ir import Compute, Schedule, Target, Tier
from zcompile.passes.lean import static_lean_peak
from zcompile.passes.pins import Pin, pin_of
from zcompile.passes.pipeline import PIPELINE, run_within_budget
from zcompile.passes.place import place
from zcompile.passes.placement import DoesNotFit, Placement, managed_values, target_for
from zcompile.passes.smallest import smallest_bytes, smallest_for_model


@many
@given(models(), pins, st.sampled_from([100, 102, 150]))
def test_the_smallest_budget_works_and_no_smaller_one(
    model: Model, pins: list[Pin], percent: int
) -> None:
    graphs, extra = model
    target = Target(host_budget=1 << 40, has_nvme=True, reserved_bytes=11)
    least = smallest_for_model(graphs, extra, pins, target)
    values = managed_values(graphs, extra)
    own = replace(target, device_budget=-(-least.bytes * percent // 100))
    placement = place(graphs, extra, pins, own)
    for graph in graphs:
        run_within_budget(PIPELINE, graph, target_for(graph, placement, values, own))
    less = attempt(model, pins, replace(target, device_budget=least.bytes - 1))
    if isinstance(less, DoesNotFit):
        assert (less.option, less.missing_bytes) == ("device_budget", 1)
    else:  # with everything at home on the device there is no arena, and less is needed
        assert Tier.DEVICE in less.homes.values()


def test_the_smallest_budget_names_what_needs_it() -> None:
    (forward, backward), extra = small()
    least = smallest_for_model((forward, backward), extra, (), Target(has_nvme=True))
    assert (least.schedule, least.step, least.kernel) == ("backward", 0, "b0")
    assert least.bytes == 100 + 8192 + 8192
    assert {value.name for value in least.values} == {
        "x", "layers.0.weight", "layers.0.weight:grad"
    }  # fmt: skip
    assert least == smallest_bytes(backward, Target(has_nvme=True))


def test_the_smallest_budget_without_another_tier_is_all_of_it() -> None:
    graphs, extra = small()
    least = smallest_for_model(graphs, extra, (), Target())
    placement = place(graphs, extra, (), Target(device_budget=least.bytes))
    assert set(placement.homes.values()) == {Tier.DEVICE}


def test_the_smallest_budget_names_all_that_rests_there() -> None:
    weights = tuple(replace(PARAMETER, name=f"{at}.weight") for at in range(20))
    graph = Schedule("forward", weights, tuple(Compute(e.name, (e.name,), ()) for e in weights))
    least = smallest_for_model((graph,), (), (), Target())
    assert {each.name for each in least.values} == {each.name for each in weights}
    assert sum(each.nbytes for each in least.values) == least.bytes


def test_the_smallest_budget_of_a_graph_that_does_nothing() -> None:
    least = smallest_bytes(Schedule("idle", (), ()), Target(reserved_bytes=5))
    assert (least.bytes, least.values) == (5, ())


def test_what_is_never_held_together_need_not_fit_together() -> None:
    graphs, extra = linear()
    least = smallest_for_model(graphs, extra, (), Target(has_nvme=True))
    assert least.bytes == 100 + 100 + 8192
    assert least.kernel in ("towards_x", "towards_w")
    target = Target(device_budget=least.bytes, has_nvme=True)
    placement = place(graphs, extra, (), target)
    own = target_for(graphs[0], placement, managed_values(graphs, extra), target)
    assert run_within_budget(PIPELINE, graphs[0], own).schedule.vacates


def test_where_static_plans_fit_they_are_what_is_placed_for() -> None:
    graphs, extra = linear()
    target = Target(device_budget=100 + 100 + 2 * 8192, has_nvme=True)
    placement = place(graphs, extra, (), target)
    own = target_for(graphs[0], placement, managed_values(graphs, extra), target)
    assert not run_within_budget(PIPELINE, graphs[0], own).schedule.vacates
    less = replace(target, device_budget=100 + 100 + 2 * 8192 - 1)
    placement = place(graphs, extra, (), less)
    assert placement.homes[PARAMETER.name] is Tier.NVME


@many
@given(models(), pins, st.integers(0, 300_000))
def test_no_arena_is_vacated_where_static_plans_fit(
    model: Model, pins: list[Pin], spare: int
) -> None:
    graphs, extra = model
    values = managed_values(graphs, extra)
    target = Target(host_budget=1 << 40, has_nvme=True)
    away = {each.name: (pin_of(each, pins) or ("", Tier.NVME))[1] for each in values}
    least = max(
        static_lean_peak(graph, target_for(graph, Placement(away), values, target))
        for graph in graphs
    )
    target = replace(target, device_budget=least + spare)
    placement = place(graphs, extra, pins, target)
    for graph in graphs:
        own = target_for(graph, placement, values, target)
        assert not run_within_budget(PIPELINE, graph, own).schedule.vacates
