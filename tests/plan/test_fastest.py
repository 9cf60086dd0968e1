"""The fastest plan of an iteration: within its budgets, above its bound, and the same each time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.plan.iterations import MACHINE, seconds_of, tiers
from tests.plan.renaming import renamed
from tests.plan.schedules import models
from tests.plan.small_models import small
from zcompile.ir import Target, Tier, Update, render, verify
from zcompile.passes.certificate import certify
from zcompile.passes.expected import UPDATE_ROOM, expected_update, streamed
from zcompile.passes.fastest import Choice, Model, choose, window_bytes
from zcompile.passes.pipeline import PIPELINE, run_within_budget
from zcompile.passes.place import place
from zcompile.passes.placement import DoesNotFit, target_for
from zcompile.passes.simulate import simulate
from zcompile.passes.smallest import smallest_for_model

few = settings(max_examples=8, deadline=None)


@st.composite
def timed_models(draw: st.DrawFn) -> tuple[Model, Target]:
    graphs, states = draw(models())
    host, has_nvme = draw(tiers)
    target = Target(
        host_budget=host,
        has_nvme=has_nvme,
        hardware=MACHINE,
        kernel_seconds=seconds_of(graphs, draw(st.sampled_from([0.0, 1e-3, 0.05]))),
    )
    least = smallest_for_model((*graphs, UPDATE_ROOM), states, (), target).bytes
    budget = least + draw(st.integers(0, 400_000))
    return Model(graphs, states), replace(target, device_budget=budget)


def chosen(model: Model, target: Target) -> Choice:
    try:
        return choose(model, target)
    except DoesNotFit:
        assume(False)
        raise


@few
@given(timed_models())
def test_the_choice_keeps_budgets_and_is_no_slower_than_the_plain_plan(
    timed: tuple[Model, Target],
) -> None:
    model, target = timed
    best = chosen(model, target).best
    placement = place((*model.graphs, *model.rooms), model.states, (), target)
    plain_s = best_s = 0.0
    for graph in model.graphs:
        own = target_for(graph, best.placement, model.values, target)
        verify(best.plans[graph.name].schedule, own, captured=graph)
        ran = simulate([best.plans[graph.name].schedule], target.kernel_seconds, MACHINE)
        best_s += ran.seconds
        plain = run_within_budget(
            PIPELINE, graph, target_for(graph, placement, model.values, target)
        )
        plain_s += simulate([plain.schedule], target.kernel_seconds, MACHINE).seconds
    assert best_s <= best.seconds * (1 + 1e-9)
    if best.placement.homes == placement.homes:
        assert best_s <= plain_s * (1 + 1e-9)


@few
@given(timed_models())
def test_no_choice_beats_its_certificate(timed: tuple[Model, Target]) -> None:
    model, target = timed
    best = chosen(model, target).best
    update = expected_update(model.values, MACHINE)
    seconds = {**target.kernel_seconds, update.schedule.name: update.seconds}
    graphs = (*model.graphs, update.schedule)
    found = certify(graphs, seconds, MACHINE, target, homes=True, window_bytes=window_bytes(target))
    assert found.seconds <= best.seconds * (1 + 1e-9)


@few
@given(timed_models())
def test_the_same_again(timed: tuple[Model, Target]) -> None:
    first, again = chosen(*timed), chosen(*timed)
    for name, plan in first.best.plans.items():
        assert render(again.best.plans[name].schedule) == render(plan.schedule)
    assert first.best.plans == again.best.plans
    assert first.verdicts == again.verdicts


@few
@given(timed_models())
def test_names_do_not_matter(timed: tuple[Model, Target]) -> None:
    model, target = timed
    names = {value.name for graph in model.graphs for value in graph.values}
    names |= {value.name for value in model.states}
    # What belongs to a parameter is named after it.
    first_parts = sorted({name.partition(":")[0] for name in names}, reverse=True)
    new_parts = {part: f"n{at:02}" for at, part in enumerate(first_parts)}
    new = {
        name: new_parts[name.partition(":")[0]] + "".join(name.partition(":")[1:]) for name in names
    }
    other = Model(
        tuple(renamed(graph, new) for graph in model.graphs),
        tuple(replace(value, name=new[value.name]) for value in model.states),
    )
    best, best_renamed = chosen(model, target).best, chosen(other, target).best
    assert best_renamed.seconds == best.seconds
    for name, plan in best.plans.items():
        assert best_renamed.plans[name].schedule == renamed(plan.schedule, new)


def test_pieces_of_an_update_are_values_of_their_own() -> None:
    graphs, states = small()
    update = expected_update(Model(graphs, states).values, MACHINE)
    homes = {value.name: Tier.NVME for value in update.schedule.values}
    homes["layers.0.weight:exp_avg"] = Tier.DEVICE
    own, places = streamed(update, homes, 5 * 4096)
    buckets = [step.bucket for step in own.schedule.steps if isinstance(step, Update)]
    assert buckets == [
        *("layers.0.weight[0]", "layers.0.weight[1]"),
        *("layers.1.weight[0]", "layers.1.weight[1]", "layers.1.weight[2]"),
    ]
    assert places["layers.1.weight:grad[1]"] is Tier.NVME
    assert "layers.0.weight:exp_avg[0]" not in places
    assert sum(own.seconds.values()) == pytest.approx(sum(update.seconds.values()))
    assert sum(value.nbytes for value in own.schedule.values) == 5 * 8192


def test_a_choice_says_why() -> None:
    graphs, states = small()
    target = Target(
        device_budget=20 * 4096,
        has_nvme=True,
        hardware=MACHINE,
        kernel_seconds=seconds_of(graphs, 1e-3),
    )
    verdicts = choose(Model(graphs, states), target).verdicts
    assert {verdict.value for verdict in verdicts} == {
        value.name for value in Model(graphs, states).values
    }
    assert all(verdict.reason for verdict in verdicts)


def test_hardware_is_needed() -> None:
    graphs, states = small()
    with pytest.raises(ValueError, match="the target has no hardware to compare plans by"):
        choose(Model(graphs, states), Target())
