"""The plan of a model: accounts that add up, and pins that match nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.plan.small_models import linear, small
from zcompile.errors import BudgetError
from zcompile.ir import Compute, Kind, Operation, Schedule, Tier, arena_peak_bytes
from zcompile.machines import load_machine, render_machine
from zcompile.options import Options
from zcompile.planner import EXPECTED_STATES, Planner

MEGABYTE = 1 << 20

NAMES = ["layers.0.weight", "layers.0.bias", "head.weight"]


def planned(budget: int, graphs: tuple[Schedule, ...]) -> Planner:
    planner = Planner(Options(device_budget=budget, host_budget=1 << 30))
    planner.announce(graphs)
    return planner


def smallest(graphs: tuple[Schedule, ...]) -> int:
    with pytest.raises(BudgetError) as error:
        planned(1, graphs)
    return error.value.smallest_bytes


@pytest.mark.parametrize("percent", [100, 102, 150, 200, 400])
def test_arena_homes_and_what_passes_come_to_no_more_than_the_peak(percent: int) -> None:
    graphs, _ = linear(MEGABYTE)
    planner = planned(smallest(graphs) * percent // 100, graphs)
    (plan,) = planner.plans()
    counted = planner.resident_bytes + arena_peak_bytes(plan.schedule) + plan.passing_bytes
    assert counted <= plan.peak_bytes
    assert counted == plan.peak_bytes or planner.resident_bytes


def test_states_that_were_expected_change_nothing() -> None:
    graphs, _ = small()
    planner = planned(20 * 4096, graphs)
    placement, plans = planner.placement, planner.plans()
    planner.expect_states(EXPECTED_STATES)
    assert planner.placement is placement
    assert all(a is b for a, b in zip(planner.plans(), plans, strict=True))
    planner.expect_states(["another"])
    assert planner.placement is not placement


def with_optimizer(budget: int, states: tuple[str, ...]) -> Planner:
    pins = (("optimizer", Tier.DEVICE),)
    options = Options(device_budget=budget, host_budget=1 << 30, place=pins)
    return Planner(options, lambda: states)


def smallest_with(states: tuple[str, ...], budget: int = 1) -> int:
    planner = with_optimizer(budget, states)
    with pytest.raises(BudgetError) as error:
        planner.announce(linear(MEGABYTE)[0])
    assert not planner.plans()
    return error.value.smallest_bytes


@pytest.mark.parametrize("states", [(), ("momentum",), EXPECTED_STATES, ("a", "b", "c")])
def test_a_smallest_budget_counts_the_states_of_an_optimizer_that_there_is(
    states: tuple[str, ...],
) -> None:
    smallest_bytes = smallest_with(states)
    assert smallest_bytes - smallest_with(()) >= len(states) * MEGABYTE // 2
    if len(states) <= len(EXPECTED_STATES):
        assert smallest_with(states, smallest_bytes - 1) == smallest_bytes
    planner = with_optimizer(smallest_bytes, states)
    planner.announce(linear(MEGABYTE)[0])
    (before,) = planner.plans()
    planner.expect_states(states)
    assert planner.plans() == (before,) or len(states) > len(EXPECTED_STATES)
    assert planner.peak_bytes <= smallest_bytes


def test_a_vacated_arena_and_what_passes_come_to_the_peak() -> None:
    graphs, _ = linear(MEGABYTE)
    planner = planned(smallest(graphs), graphs)
    (plan,) = planner.plans()
    assert plan.schedule.vacates
    assert plan.peak_bytes == smallest(graphs) == 100 + 100 + MEGABYTE
    assert arena_peak_bytes(plan.schedule) + plan.passing_bytes == plan.peak_bytes


def refused(*patterns: str) -> str:
    planner = Planner(Options.parse({"place": dict.fromkeys(patterns, "device")}))
    with pytest.raises(ValueError, match="matches no parameter") as error:
        planner.check_pins(NAMES)
    return str(error.value)


def test_a_pattern_that_matches_no_parameter_is_refused_with_names_near_it() -> None:
    assert refused("parameters", "heads.weight") == (
        "place={'parameters': 'device', 'heads.weight': 'device'}: 'heads.weight' matches no "
        "parameter; write one of parameters, gradients, optimizer, activations, or the name of a "
        "parameter, such as 'head.weight' or 'layers.0.weight'"
    )
    assert "'layers.0.weight'" in refused("layer.0.*")
    assert refused("optimiser").endswith("such as 'optimizer'")
    assert "such as 'layers.0.weight' or 'layers.0.bias' or" in refused("zzz")


def test_kinds_and_patterns_that_match_are_fine() -> None:
    pins = {"gradients": "device", "optimizer": "device", "layers.*": "device", "*.bias": "device"}
    planner = Planner(Options.parse({"place": pins}))
    planner.check_pins(NAMES)
    assert planner.doubts_about_pins() == ()


def test_a_model_without_parameters_has_no_names_to_offer() -> None:
    planner = Planner(Options.parse({"place": {"w": "device"}}))
    with pytest.raises(ValueError, match="'w' matches no parameter; leave it out"):
        planner.check_pins([])


def test_without_all_names_there_are_only_doubts() -> None:
    planner = Planner(Options.parse({"place": {"layers.0.*": "device", "layers.1.*": "device"}}))
    planner.announce(linear()[0])
    (doubt,) = planner.doubts_about_pins()
    assert "'layers.1.*' matches no parameter" in doubt
    planner.announce(small()[0])
    assert planner.doubts_about_pins() == ()


def timed(**options: object) -> Planner:
    graphs, _ = linear(MEGABYTE)
    given = {"device_budget": smallest(graphs) * 2, "host_budget": 1 << 30, "target": "rtx4090"}
    planner = Planner(Options.parse({**given, **options}))
    operation = (Operation("mm", Kind.MATMUL, "float32", 1 << 30, MEGABYTE),)
    planner.announce(graphs, {"backward": dict.fromkeys(("towards_x", "towards_w"), operation)})
    return planner


def test_on_a_known_machine_plans_are_compared_by_their_time() -> None:
    (plan,) = timed().plans()
    seconds = [each.seconds for each in plan.plan.tried]
    assert len(seconds) > 1
    (ran,) = [each.seconds for each in plan.plan.tried if each.pipeline == plan.plan.pipeline]
    assert ran == min(seconds)
    assert plan.peak_bytes <= smallest(linear(MEGABYTE)[0]) * 2


def test_a_pipeline_that_was_asked_for_is_the_only_one() -> None:
    (plan,) = timed(pipeline="place,stream,offload,deadline,pack").plans()
    assert [each.pipeline for each in plan.plan.tried] == [
        "place,stream,offload,deadline{spare_percent=100},pack"
    ]


def test_without_all_times_the_plan_is_the_plain_one() -> None:
    graphs, _ = linear(MEGABYTE)
    planner = Planner(Options.parse({"device_budget": 64 << 20, "target": "rtx4090"}))
    planner.announce(graphs)
    assert [plan.plan.tried for plan in planner.plans()] == [()]


def test_a_machine_that_there_is_not_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(render_machine(replace(load_machine("rtx4090"), links={})))
    with pytest.raises(ValueError, match="target='h1000': machine='h1000' is neither a file nor"):
        Planner(Options(target="h1000"))
    with pytest.raises(ValueError, match="has no link h2d, which host_budget needs; leave out"):
        Planner(Options(target=str(path), host_budget=1 << 30))
    with pytest.raises(ValueError, match="deadline keeps time by a machine; give target"):
        Planner(Options(pipeline="place,stream,offload,deadline,pack"))


def test_plans_change_if_kernels_take_other_times_and_it_pays() -> None:
    planner = timed(host_budget=1 << 30)
    (before,) = planner.plans()
    num_moves = sum(not isinstance(step, Compute) for step in before.schedule.steps)
    assert not planner.correct({}), "nothing was measured, so nothing is better"
    assert planner.plans() == (before,)
    taken = planner.placement
    for seconds in (1e-9, 10.0):
        gaps = [seconds] * (num_moves + 1)
        changed = planner.correct({"backward": (before.schedule, [gaps])})
        (after,) = planner.plans()
        assert changed == (after is not before)
        assert after.captured is before.captured
        assert after.peak_bytes <= smallest(linear(MEGABYTE)[0]) * 2
        assert set(planner.placement.homes) == set(taken.homes)
