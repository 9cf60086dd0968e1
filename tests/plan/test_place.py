"""Homes: pins are obeyed, budgets kept, and every decision has its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import many, models
from tests.plan.small_models import GRADIENT, MOMENT, PARAMETER, Model, attempt, pins, small
from zcompile.ir import (
    Compute,
    Fetch,
    Role,
    Schedule,
    Target,
    Tier,
    Update,
    Value,
    host_profile,
    peak_bytes,
    verify,
)
from zcompile.passes.lean import lean_peak, lean_plan
from zcompile.passes.pins import Pin, matches, pin_of
from zcompile.passes.pipeline import PIPELINE, run_within_budget
from zcompile.passes.place import Preference, place
from zcompile.passes.placement import (
    DoesNotFit,
    Placement,
    home_bytes,
    managed_values,
    parameter_of,
    reserved_for,
    resident_bytes,
    target_for,
)
from zcompile.passes.smallest import smallest_for_model


def peak(model: Model, placement: Placement, target: Target) -> int:
    graphs, extra = model
    values = managed_values(graphs, extra)
    return max(lean_peak(graph, target_for(graph, placement, values, target)) for graph in graphs)


def test_without_a_budget_everything_is_on_the_device() -> None:
    graphs, extra = small()
    placement = place(graphs, extra, (), Target(has_nvme=True, host_budget=1))
    assert set(placement.homes.values()) == {Tier.DEVICE}
    assert {each.reason for each in placement.verdicts} == {"there is no device_budget"}


def test_what_fits_is_on_the_device() -> None:
    graphs, extra = small()
    values = managed_values(graphs, extra)
    everything = peak(
        small(), Placement(dict.fromkeys((v.name for v in values), Tier.DEVICE)), Target()
    )
    placement = place(graphs, extra, (), Target(device_budget=everything, has_nvme=True))
    assert set(placement.homes.values()) == {Tier.DEVICE}
    less = place(graphs, extra, (), Target(device_budget=everything - 1, has_nvme=True))
    assert set(less.homes.values()) == {Tier.DEVICE, Tier.NVME}


def test_parameters_come_first_on_the_device() -> None:
    graphs, extra = small(kernels=4)
    least = smallest_for_model(graphs, extra, (), Target(has_nvme=True)).bytes
    homes = place(graphs, extra, (), Target(device_budget=least + 40_000, has_nvme=True)).homes
    on_device = [name for name, tier in homes.items() if tier is Tier.DEVICE]
    assert on_device[0] == "layers.0.weight"
    assert all(not name.endswith(":exp_avg") for name in on_device)


def test_the_host_comes_before_nvme_hottest_first() -> None:
    graphs, extra = small()
    least = smallest_for_model(graphs, extra, (), Target(has_nvme=True)).bytes
    target = Target(device_budget=least, host_budget=3 * 8192, has_nvme=True)
    homes = place(graphs, extra, (), target).homes
    assert homes == {
        "layers.0.weight": Tier.HOST,
        "layers.1.weight": Tier.HOST,
        "layers.0.weight:grad": Tier.HOST,
        "layers.1.weight:grad": Tier.NVME,
        "layers.0.weight:exp_avg": Tier.NVME,
        "layers.1.weight:exp_avg": Tier.NVME,
    }


def test_every_value_has_a_verdict() -> None:
    graphs, extra = small()
    least = smallest_for_model(graphs, extra, (), Target(has_nvme=True)).bytes
    target = Target(device_budget=least + 20_000, host_budget=8192, has_nvme=True)
    placement = place(graphs, extra, [("layers.1.*", Tier.NVME)], target)
    assert {each.value: each.tier for each in placement.verdicts} == placement.homes
    assert {
        each.tier: each.reason for each in placement.verdicts if "pinned" not in each.reason
    } == {
        Tier.DEVICE: "every lean plan still fits device_budget beside it",
        Tier.HOST: "host_budget has room, device_budget has not",
        Tier.NVME: "no faster tier has room",
    }
    pinned = [each for each in placement.verdicts if each.reason == "pinned by 'layers.1.*'"]
    assert [each.value for each in pinned] == [
        "layers.1.weight", "layers.1.weight:grad", "layers.1.weight:exp_avg",
    ]  # fmt: skip


def test_room_for_prefetching_is_left() -> None:
    graphs, extra = small(kernels=20)
    least = smallest_for_model(graphs, extra, (), Target(has_nvme=True)).bytes
    target = Target(device_budget=least + 100_000, has_nvme=True)
    placement = place(graphs, extra, (), target)
    assert least < peak((graphs, extra), placement, target) <= least + 50_000


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("parameters", {PARAMETER}),
        ("gradients", {GRADIENT}),
        ("optimizer", {MOMENT}),
        ("layers.*", {PARAMETER, GRADIENT, MOMENT}),
        ("*.weight", {PARAMETER, GRADIENT, MOMENT}),
        ("*:grad", set[Value]()),
        ("Layers.*", set[Value]()),
    ],
)
def test_what_a_pin_speaks_of(pattern: str, matched: set[Value]) -> None:
    assert {v for v in (PARAMETER, GRADIENT, MOMENT) if matches(pattern, v)} == matched


def test_patterns_speak_of_no_activation() -> None:
    saved = Value("saved.0.1", 4096, Role.SAVED)
    assert matches("activations", saved)
    assert not matches("*", saved)


def with_saved(nbytes: int = 40_000) -> Model:
    """A forward that saves three values for its backward, and one layer."""
    saved = [Value(f"saved.0.{i}", nbytes, Role.SAVED) for i in range(3)]
    names = tuple(each.name for each in saved)
    x = Value("x", 100, Role.INPUT, held=True)
    forward = Schedule(
        "forward",
        (x, PARAMETER, *saved),
        tuple(Compute(f"f{i}", ("x", PARAMETER.name), (name,)) for i, name in enumerate(names)),
        names,
    )
    backward = Schedule(
        "backward",
        (PARAMETER, *saved, GRADIENT),
        (
            *(Compute(f"b{i}", (PARAMETER.name, name), ()) for i, name in enumerate(names)),
            Compute("last", (PARAMETER.name,), (GRADIENT.name,)),
        ),
        (GRADIENT.name,),
    )
    return (forward, backward), (MOMENT,)


def test_activations_leave_last() -> None:
    graphs, extra = with_saved()
    least = smallest_for_model(graphs, extra, (), Target(has_nvme=True)).bytes
    assert least < 2 * 40_000
    homes = place(graphs, extra, (), Target(device_budget=least, has_nvme=True)).homes
    assert set(homes.values()) == {Tier.NVME}
    homes = place(graphs, extra, (), Target(device_budget=least + 90_000, has_nvme=True)).homes
    at_device = [name for name, tier in homes.items() if tier is Tier.DEVICE]
    assert at_device[:3] == ["saved.0.0", "saved.0.1", "saved.0.2"]


def test_what_is_saved_is_reserved_in_no_other_graph() -> None:
    graphs, extra = with_saved()
    values = managed_values(graphs, extra)
    placement = Placement(dict.fromkeys((value.name for value in values), Tier.DEVICE))
    assert resident_bytes(placement, values) == 3 * 8192


def test_what_is_saved_counts_with_the_largest_shapes_seen() -> None:
    (forward, _), _ = with_saved(nbytes=100)
    (_, backward), _ = with_saved(nbytes=200)
    saved = [each for each in managed_values((forward, backward)) if each.role is Role.SAVED]
    assert [each.nbytes for each in saved] == [200] * 3


def test_a_later_pin_wins() -> None:
    both = [("parameters", Tier.NVME), ("layers.0.*", Tier.HOST)]
    assert pin_of(PARAMETER, both) == ("layers.0.*", Tier.HOST)
    assert pin_of(PARAMETER, both[::-1]) == ("parameters", Tier.NVME)
    assert pin_of(PARAMETER, [("other", Tier.HOST)]) is None


def test_parameter_names_may_hold_colons() -> None:
    assert parameter_of(Value("a:b:grad", 1, Role.GRADIENT)) == "a:b"
    assert parameter_of(Value("a:b", 1, Role.PARAMETER)) == "a:b"


def refused(pin: list[Pin], target: Target) -> DoesNotFit:
    graphs, extra = small()
    with pytest.raises(DoesNotFit) as error:
        place(graphs, extra, pin, target)
    return error.value


def test_a_pin_to_a_tier_that_is_not_there() -> None:
    error = refused([("optimizer", Tier.NVME)], Target())
    assert (error.option, error.missing_bytes) == ("nvme_dir", 2 * 8192)
    error = refused([("optimizer", Tier.HOST)], Target(has_nvme=True))
    assert (error.option, error.missing_bytes) == ("host_budget", 2 * 8192)
    error = refused([("optimizer", Tier.HOST)], Target(host_budget=10_000, host_reserved_bytes=1))
    assert (error.option, error.missing_bytes) == ("host_budget", 2 * 8192 - 9999)
    assert "16384 B are pinned to the host" in str(error)


def test_a_pin_to_the_device_that_breaks_the_budget() -> None:
    least = smallest_for_model(*small(), (), Target(has_nvme=True)).bytes
    target = Target(device_budget=least, has_nvme=True)
    error = refused([("optimizer", Tier.DEVICE)], target)
    assert error.option == "device_budget"
    with_pin = smallest_for_model(*small(), [("optimizer", Tier.DEVICE)], target).bytes
    assert error.missing_bytes == with_pin - least


def test_no_tier_has_room() -> None:
    graphs, extra = small()
    total = sum(value.nbytes for value in managed_values(graphs, extra))
    least = smallest_for_model(graphs, extra, (), Target(has_nvme=True)).bytes
    error = refused([], Target(device_budget=least))
    assert error.option == "device_budget"
    assert place(graphs, extra, (), Target(device_budget=least + error.missing_bytes))
    error = refused([], Target(device_budget=least, host_budget=total - 1))
    assert (error.option, error.missing_bytes) == ("host_budget", 1)
    homes = place(graphs, extra, (), Target(device_budget=least, host_budget=total)).homes
    assert set(homes.values()) == {Tier.HOST}


def test_where_the_host_is_full_room_for_prefetching_gives_way() -> None:
    graphs, extra = small(kernels=4)
    total = sum(value.nbytes for value in managed_values(graphs, extra))
    least = smallest_for_model(graphs, extra, (), Target(has_nvme=True)).bytes
    target = Target(device_budget=least + 3 * 8192, host_budget=total - 3 * 8192)
    homes = place(graphs, extra, (), target).homes
    assert list(homes.values()).count(Tier.DEVICE) == 3


def test_the_host_may_be_for_others_than_the_device() -> None:
    graphs, extra = small()
    names = [value.name for value in managed_values(graphs, extra)]
    least = smallest_for_model(graphs, extra, (), Target(has_nvme=True)).bytes
    target = Target(device_budget=least + 8192, host_budget=2 * 8192, has_nvme=True)

    def homes(preference: Preference) -> dict[Tier, list[str]]:
        placement = place(graphs, extra, (), target, preference)
        return {tier: [n for n in names if placement.homes[n] is tier] for tier in Tier}

    order = tuple(names)
    same = homes(Preference(order, prefetch_bytes=0))
    assert (same[Tier.DEVICE], same[Tier.HOST]) == (names[:1], names[1:3])
    other = homes(Preference(order, prefetch_bytes=0, host_order=tuple(reversed(names))))
    assert (other[Tier.DEVICE], other[Tier.HOST]) == (names[:1], names[-2:])


def test_sizes_must_agree_between_graphs() -> None:
    graphs, extra = small()
    with pytest.raises(ValueError, match=r"%layers.0.weight:exp_avg is 8192 B of state in one"):
        managed_values(graphs, (*extra, replace(extra[0], nbytes=1)))


def test_reserved_bytes() -> None:
    graphs, extra = small()
    values = managed_values(graphs, extra)
    placement = Placement(dict.fromkeys((value.name for value in values), Tier.DEVICE))
    assert resident_bytes(placement, values) == 6 * 8192
    # Forward sees parameters alone; backward makes new gradients beside the old ones.
    assert reserved_for(graphs[0], placement, values) == 4 * 8192
    assert reserved_for(graphs[1], placement, values) == 4 * 8192
    target = target_for(graphs[0], placement, values, Target(reserved_bytes=7))
    assert (target.reserved_bytes, target.homes) == (4 * 8192 + 7, placement.homes)
    on_host = Placement(dict.fromkeys(placement.homes, Tier.HOST))
    target = target_for(graphs[1], on_host, values, Target(host_reserved_bytes=7))
    assert (target.reserved_bytes, target.host_reserved_bytes) == (0, 2 * 8192 + 7)


@many
@given(
    models(),
    pins,
    st.integers(0, 300_000),
    st.integers(0, 9000),
    st.none() | st.integers(0, 200_000),
)
def test_placements_obey_pins_and_keep_budgets(
    model: Model, pins: list[Pin], spare: int, reserved: int, host: int | None
) -> None:
    graphs, extra = model
    target = Target(reserved_bytes=reserved, host_budget=host, has_nvme=True)
    least = smallest_for_model(graphs, extra, pins, target).bytes
    target = replace(target, device_budget=least + spare)
    values = managed_values(graphs, extra)
    placement = attempt(model, pins, target)
    if isinstance(placement, DoesNotFit):  # more pinned to the host than it holds
        assert placement.option == "host_budget"
        return
    assert placement.homes.keys() == {value.name for value in values}
    for value in values:
        if pin := pin_of(value, pins):
            assert placement.homes[value.name] is pin[1]
    for graph in graphs:
        own = target_for(graph, placement, values, target)
        verify(lean_plan(graph, own), own)
        plan = run_within_budget(PIPELINE, graph, own)
        verify(plan.schedule, own, captured=graph)
        assert max(host_profile(plan.schedule, own)) <= (host or 0)


@many
@given(models(), st.integers(0, 300_000), st.integers(0, 300_000))
def test_a_host_alone_either_holds_the_rest_or_is_named(
    model: Model, spare: int, host: int
) -> None:
    graphs, extra = model
    target = Target(host_budget=host)
    least = smallest_for_model(graphs, extra, (), target).bytes
    target = replace(target, device_budget=least + spare)
    values = managed_values(graphs, extra)
    placement = attempt(model, [], target)
    if isinstance(placement, DoesNotFit):
        assert placement.option == "host_budget"
        assert sum(home_bytes(value, Tier.HOST) for value in values) > host
        target = replace(target, host_budget=host + placement.missing_bytes)
        placement = place(graphs, extra, (), target)
    assert resident_bytes(placement, values, Tier.HOST) <= (target.host_budget or 0)
    for graph in graphs:
        own = target_for(graph, placement, values, target)
        verify(lean_plan(graph, own), own)


@many
@given(models(), pins, st.integers(0, 300_000))
def test_placements_are_deterministic(model: Model, pins: list[Pin], spare: int) -> None:
    graphs, extra = model
    target = Target(host_budget=1 << 40, has_nvme=True)
    target = replace(
        target, device_budget=smallest_for_model(graphs, extra, pins, target).bytes + spare
    )
    assert place(graphs, extra, pins, target) == place(graphs, extra, pins, target)


def test_updates_stream_through_what_is_left() -> None:
    values = tuple(
        replace(each, name=f"{each.name}[{i}]", home=Tier.NVME)
        for i in range(8)
        for each in (PARAMETER, GRADIENT, MOMENT)
    )
    steps = tuple(
        Update(f"b{i}", tuple(v.name for v in values[3 * i : 3 * i + 3]),
               (values[3 * i].name, values[3 * i + 2].name))
        for i in range(8)
    )  # fmt: skip
    schedule = Schedule("update", values, steps)
    for budget in (3 * 8192, 5 * 8192, 6 * 8192, 12 * 8192):
        target = Target(device_budget=budget)
        plan = run_within_budget(PIPELINE, schedule, target).schedule
        verify(plan, target, captured=schedule)
        ahead = [type(step).__name__ for step in plan.steps[:4]].count("Fetch")
        assert ahead >= 3
        assert (peak_bytes(plan, target) > 3 * 8192) == (budget > 3 * 8192)
        assert sum(isinstance(step, Fetch) for step in plan.steps) == 24
