"""Updates that are expected to begin early: which, when, and what the planner makes of it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from tests.plan.iterations import MACHINE, seconds_of
from tests.plan.small_models import small
from tests.plan.test_fastest import chosen, few, timed_models
from zcompile.ir import Release, Schedule, Target, Tier, Update, peak_bytes, verify
from zcompile.passes.ahead import Ahead, ahead
from zcompile.passes.expected import expected_update
from zcompile.passes.fastest import Model, choose
from zcompile.passes.pipeline import PIPELINE, run_within_budget

PAGE = 4096
GRAPHS, STATES = small(kernels=4)
MODEL = Model(GRAPHS, STATES)
UPDATE = expected_update(MODEL.values, MACHINE)
WINDOW = 24 * PAGE
NVME = {value.name: Tier.NVME for value in MODEL.values}


def planned(homes: dict[str, Tier]) -> list[Schedule]:
    target = Target(has_nvme=True, homes=homes)
    return [run_within_budget(PIPELINE, graph, target).schedule for graph in GRAPHS]


def plan(schedule: Schedule, target: Target) -> Schedule:
    return run_within_budget(PIPELINE, schedule, target).schedule


def found(homes: dict[str, Tier], runs: list[Schedule] | None = None) -> Ahead:
    target = Target(has_nvme=True, homes=homes, hardware=MACHINE)
    return ahead(UPDATE, runs or planned(homes), target, WINDOW, plan)


def buckets(schedule: Schedule) -> list[str]:
    names = (each.bucket for each in schedule.steps if isinstance(each, Update))
    return list(dict.fromkeys(name.partition("[")[0] for name in names))


def test_batches_wait_for_the_last_of_their_gradients() -> None:
    runs = planned(NVME)
    begun = found(NVME, runs)
    # A bundle takes eight pages, and a batch at least two windows: six of four pieces each.
    assert [buckets(each.schedule) for each in begun.beside] == [
        [f"layers.{at}.weight" for at in range(4)]
    ]
    (only,) = begun.beside
    step = runs[only.graph].steps[only.step]
    assert isinstance(step, Release)
    assert step.value == "layers.3.weight:grad"
    assert not begun.left.schedule.steps
    assert peak_bytes(only.schedule, Target()) <= WINDOW


def test_what_is_not_all_in_files_is_left_to_the_step() -> None:
    homes = {**NVME, "layers.1.weight:exp_avg": Tier.DEVICE, "layers.2.weight:grad": Tier.DEVICE}
    begun = found(homes)
    assert [buckets(each.schedule) for each in begun.beside] == [
        ["layers.0.weight", "layers.3.weight"]
    ]
    assert buckets(begun.left.schedule) == ["layers.1.weight", "layers.2.weight"]
    assert set(begun.left.seconds) == {"layers.1.weight", "layers.2.weight"}


def test_gradients_that_are_accumulated_come_home_more_than_once() -> None:
    runs = planned(NVME)
    assert not found(NVME, [*runs, *runs]).beside


def test_what_needs_more_than_the_window_is_left() -> None:
    target = Target(has_nvme=True, homes=NVME, hardware=MACHINE)
    begun = ahead(UPDATE, planned(NVME), target, PAGE, plan)
    assert not begun.beside
    assert begun.left.schedule.steps == UPDATE.schedule.steps


def test_early_updates_hide_behind_long_kernels() -> None:
    # Each layer computes much longer than its update takes to copy.
    graphs, states = small(kernels=8)
    kinds = ("parameters", "gradients", "optimizer")
    model = Model(graphs, states, tuple((kind, Tier.NVME) for kind in kinds))
    target = Target(
        device_budget=60 * PAGE,
        has_nvme=True,
        hardware=replace(MACHINE, memory_bytes_per_s=1e9),
        kernel_seconds=seconds_of(graphs, 1.0),
    )
    without = choose(model, target).best
    window = 10 * PAGE
    early = choose(replace(model, early_bytes=window), replace(target, reserved_bytes=window)).best
    assert (without.num_early, early.num_early) == (0, 2)
    # All but the second half of the update, which waits for the last gradients, is hidden.
    assert early.seconds < without.seconds
    assert buckets(without.update) == [f"layers.{at}.weight" for at in range(8)]
    assert not early.update.steps


@few
@given(timed_models())
def test_plans_with_a_window_keep_their_budgets(timed: tuple[Model, Target]) -> None:
    model, target = timed
    window = 16 * PAGE
    budget = (target.device_budget or 0) + window
    target = replace(target, device_budget=budget, reserved_bytes=window)
    best = chosen(replace(model, early_bytes=window), target).best
    again = chosen(replace(model, early_bytes=window), target).best
    assert (again.seconds, again.plans) == (best.seconds, best.plans)
    for plan in best.plans.values():
        verify(plan.schedule)
    assert best.seconds >= sum(
        target.kernel_seconds[graph.name][name]
        for graph in model.graphs
        for name in target.kernel_seconds[graph.name]
    ) * (1 - 1e-9)
