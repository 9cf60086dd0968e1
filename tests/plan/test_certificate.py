"""The certificate: below every plan, whatever the solver says, and monotone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.plan.iterations import MACHINE, iteration, seconds_of, settings_of
from tests.plan.renaming import other_names, renamed
from tests.plan.small_models import small
from zcompile.ir import Hardware, Schedule, Target
from zcompile.passes.certificate import Certificate, certify
from zcompile.passes.pipeline import PIPELINE, run_within_budget
from zcompile.passes.place import place
from zcompile.passes.placement import DoesNotFit, managed_values, target_for
from zcompile.passes.simulate import simulate

PAGE = 4096
LAYER = 2 * PAGE

many = settings(max_examples=25, deadline=None)
"""Every example solves linear programs."""

Setting = tuple[tuple[Schedule, ...], Target, float]


def certified(
    setting: Setting, *, homes: bool = False, hardware: Hardware = MACHINE
) -> Certificate:
    cycle, target, seconds = setting
    try:
        return certify(cycle, seconds_of(cycle, seconds), hardware, target, homes=homes)
    except DoesNotFit:
        assume(False)
        raise


def simulated(cycle: Sequence[Schedule], target: Target, seconds: float) -> float:
    try:
        placement = place(cycle, (), (), target)
    except DoesNotFit:
        assume(False)
        raise
    values = managed_values(cycle)
    planned = {
        graph.name: run_within_budget(
            PIPELINE, graph, target_for(graph, placement, values, target)
        ).schedule
        for graph in cycle
    }
    run = [planned[graph.name] for graph in cycle]
    return simulate(run, seconds_of(cycle, seconds), MACHINE).seconds


def below(least: float, seconds: float) -> bool:
    return least <= seconds * (1 + 1e-9) + 1e-9


@many
@given(settings_of(), st.booleans())
def test_no_plan_is_faster(setting: Setting, homes: bool) -> None:
    taken = simulated(*setting)
    found = certified(setting, homes=homes)
    assert below(found.seconds, taken)
    assert found.gap(taken) >= -1e-9


@many
@given(settings_of(), st.integers(2, 3))
def test_no_plan_is_faster_under_accumulation(setting: Setting, times: int) -> None:
    (*passes, update), target, seconds = setting
    cycle = (*passes * times, update)
    taken = simulated(cycle, target, seconds)
    assert below(certified((cycle, target, seconds), homes=True).seconds, taken)
    assert below(certified((cycle, target, seconds)).seconds, taken)


@many
@given(settings_of())
def test_plans_bound_to_homes_are_no_faster_than_all_plans(setting: Setting) -> None:
    assert below(certified(setting).seconds, certified(setting, homes=True).seconds)


@many
@given(settings_of(), st.integers(1, 200_000))
def test_a_larger_budget_raises_no_bound(setting: Setting, more: int) -> None:
    cycle, target, seconds = setting
    assert target.device_budget is not None
    larger = [replace(target, device_budget=target.device_budget + more)]
    if target.host_budget is not None:
        larger.append(replace(target, host_budget=target.host_budget + more))
    least = certified(setting).seconds
    for each in larger:
        assert below(certified((cycle, each, seconds)).seconds, least)


@many
@given(settings_of(), st.sampled_from(list(MACHINE.links)), st.floats(1.0, 10.0))
def test_a_faster_channel_raises_no_bound(setting: Setting, channel: str, times: float) -> None:
    link = next(link for each, link in MACHINE.links.items() if each == channel)
    faster = replace(link, bandwidth_bytes_per_s=times * link.bandwidth_bytes_per_s)
    links = {each: faster if each == channel else old for each, old in MACHINE.links.items()}
    after = certified(setting, hardware=replace(MACHINE, links=links))
    assert below(after.seconds, certified(setting).seconds)


@many
@given(settings_of(), st.randoms(use_true_random=False))
def test_wrong_multipliers_give_a_bound_too(setting: Setting, random: Random) -> None:
    relaxation = certified(setting).relaxation
    assert relaxation is not None
    proof = relaxation.proof
    duals = replace(
        proof.duals,
        at_most=tuple(each + random.uniform(-0.1, 0.1) for each in proof.duals.at_most),
        equal=tuple(each * random.choice([0, 1, -1]) for each in proof.duals.equal),
    )
    assert below(replace(proof, duals=duals).seconds, relaxation.seconds)


@many
@given(settings_of(), st.integers(2, 6))
def test_a_few_samples_give_a_lower_bound(setting: Setting, samples: int) -> None:
    cycle, target, seconds = setting
    kernels = seconds_of(cycle, seconds)
    all_of_them = certified(setting).seconds
    assert below(certify(cycle, kernels, MACHINE, target, samples=samples).seconds, all_of_them)


@many
@given(settings_of())
def test_names_do_not_matter_and_nothing_varies(setting: Setting) -> None:
    cycle, target, seconds = setting
    first, again = certified(setting), certified(setting)
    assert repr(first) == repr(again)
    again_named = tuple(renamed(graph, other_names(cycle)) for graph in cycle)
    other = certified((again_named, target, seconds))
    assert other.text() == first.text()
    assert first.relaxation is not None
    assert other.relaxation is not None
    assert list(other.relaxation.residency.values()) == list(first.relaxation.residency.values())


def test_the_text_names_what_decides() -> None:
    cycle = iteration(small())
    target = Target(device_budget=7 * PAGE, has_nvme=True)
    found = certify(cycle, seconds_of(cycle, 0.001), MACHINE, target)
    assert found.binding.resource == "the disk"
    assert found.text(2 * found.seconds).splitlines()[0].endswith("100.0% apart")
    assert "NVMe read, " in found.text()
    assert "10% more of the disk would save about " in found.text()
    assert "10% more device_budget would save about " in found.text()


def test_without_a_budget_the_kernels_decide() -> None:
    cycle = iteration(small())
    found = certify(cycle, seconds_of(cycle, 0.5), MACHINE, Target(has_nvme=True))
    assert (found.seconds, found.binding.resource) == (3.5, "kernels")
    assert found.text().splitlines()[1:] == [
        "what decides is kernels: compute, 2.5 s; update, 1 s",
        "no budget and no channel would help",
    ]


def test_what_cannot_fit_is_refused() -> None:
    cycle = iteration(small())
    with pytest.raises(DoesNotFit, match="a kernel needs more than there is"):
        certify(cycle, seconds_of(cycle, 0.5), MACHINE, Target(device_budget=PAGE, has_nvme=True))


def of_small(target: Target, *, homes: bool) -> float:
    """Return the bound of a small model whose kernels hide whatever may run beside them."""
    cycle = iteration(small())
    seconds = seconds_of(cycle, 1.0)
    seconds["update"] = dict.fromkeys(seconds["update"], 0.0)
    return certify(cycle, seconds, MACHINE, target, homes=homes, window_bytes=PAGE).seconds


def test_todays_updates_hide_behind_nothing() -> None:
    # What backward needs is all there is, so nothing lives on the device: the update reads
    # parameters, gradients and moments of two layers, and writes all but the gradients.
    target = Target(device_budget=2 * LAYER + 100, has_nvme=True)
    moving_s = 2 * 3 * LAYER / 2e6 + 2 * 2 * LAYER / 1e6
    every, today = (of_small(target, homes=each) for each in (False, True))
    assert every < today
    assert today >= 5.0 + 0.9 * moving_s


def test_todays_gradients_take_their_room_twice_while_they_are_made() -> None:
    # Parameters, gradients and moments of two layers have room, and what kernels need.
    fits = Target(device_budget=6 * LAYER + 3 * PAGE, has_nvme=True)
    assert of_small(fits, homes=False) == pytest.approx(5.0)
    assert of_small(fits, homes=True) > 5.0 + 1e-3
    enough = Target(device_budget=8 * LAYER + 3 * PAGE, has_nvme=True)
    assert of_small(enough, homes=True) == pytest.approx(5.0)
