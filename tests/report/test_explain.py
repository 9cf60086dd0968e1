"""What becomes of one value, told from plans that ran and from plans written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import zcompile
from tests.report.models import compiled, layers, train
from zcompile.ir import Fetch, Role, Schedule, Target, Tier, Value, Wait, parse
from zcompile.passes.pipeline import PIPELINE, Rejected, render_pipeline, run_within_budget
from zcompile.passes.placement import Verdict
from zcompile.report.explain import Life, Placed, Told
from zcompile.report.schedules import ScheduleReport


@pytest.fixture
def reports(tmp_path: Path) -> tuple[ScheduleReport, ...]:
    model: Any = layers()
    module = compiled(model, tmp_path)
    train(module, list(model.parameters()), steps=1)
    return zcompile.schedules(module)


def away(report: ScheduleReport, role: Role) -> str:
    """Return a value of that role whose home is the disk."""
    values = report.placed.values.values()
    verdicts = report.placed.verdicts
    return next(
        each.name for each in values if each.role is role and verdicts[each.name].tier is Tier.NVME
    )


def test_a_gradient_is_made_written_and_released(reports: tuple[ScheduleReport, ...]) -> None:
    forward, backward = reports
    name = away(backward, Role.GRADIENT)
    life = backward.explain(name)
    assert (life.home, life.why) == (Tier.NVME, "no faster tier has room")
    assert [each.what.split()[0] for each in life.events] == ["made", "written", "released"]
    assert "must have landed" in life.events[-1].why
    assert "device, where 262144 B (256.0 KiB) would lie twice" in life.rejected[0]
    elsewhere = forward.explain(name)
    assert elsewhere.events == ()
    assert f"no step of {forward.name} touches it\nalso in {backward.name}" in str(elsewhere)


def test_a_state_rests_and_no_graph_touches_it(reports: tuple[ScheduleReport, ...]) -> None:
    name = away(reports[0], Role.STATE)
    life = reports[0].explain(name)
    assert life.home is Tier.NVME
    assert life.graphs == ()
    assert str(life).startswith(f"{name}: 262144 B of state, at home on nvme: no faster tier")


def test_a_machine_tells_what_is_exposed(reports: tuple[ScheduleReport, ...]) -> None:
    forward, backward = reports
    simulated = backward.simulate("rtx4090").exposed_s
    names = {each.name for each in backward.schedule.values}
    lives = [backward.explain(name, "rtx4090") for name in names]
    assert simulated > 0
    # Kernels that share the machine with copies are exposed too, and belong to no value.
    assert 0 < sum(each.exposed_s for each in lives) <= simulated * (1 + 1e-9)
    assert all(each.exposed_s == 0 for each in map(forward.explain, ("0.weight", "0.bias")))


def test_an_unknown_name_is_answered_with_those_near(reports: tuple[ScheduleReport, ...]) -> None:
    with pytest.raises(ValueError, match=r"no value is called '0\.weigth'; did you mean 0\.weight"):
        reports[0].explain("0.weigth")
    with pytest.raises(ValueError, match="no value is called 'zzz'; there is "):
        reports[0].explain("zzz")


CAPTURED = """
schedule s
value %x : 100 B input @ device held
value %a : 8192 B parameter @ nvme
value %b : 8192 B parameter @ nvme
value %c : 8192 B parameter @ nvme
value %y : 100 B intermediate @ device
compute k0(%x) -> () transient 0 B
compute k1(%x) -> () transient 0 B
compute k2(%a) -> () transient 0 B
compute k3(%b) -> () transient 0 B
compute k4(%a) -> (%y) transient 100 B
compute k5(%c) -> () transient 0 B
output %y
"""


def told(budget: int | None, passes: str = render_pipeline(PIPELINE)) -> Told:
    from zcompile.passes.pipeline import parse_pipeline

    schedule = parse(CAPTURED)
    homes = dict.fromkeys("abc", Tier.NVME)
    target = Target(device_budget=budget, homes=homes, has_nvme=True)
    plan = run_within_budget(parse_pipeline(passes), schedule, target)
    return Told(plan.schedule, plan.stages, plan.pipeline, plan.rejected, placed(schedule))


def placed(schedule: Schedule) -> Placed:
    values = {each.name: each for each in schedule.values if each.role is Role.PARAMETER}
    verdicts = {name: Verdict(name, Tier.NVME, "pinned by 'parameters'") for name in values}
    return Placed(values, verdicts, dict.fromkeys(values, ("s",)), 0)


def fetches(life: Life) -> list[str]:
    return [each.why for each in life.events if each.what.startswith("fetched")]


def test_with_room_it_is_fetched_early_and_kept() -> None:
    life = told(None).life("a")
    assert fetches(life) == ["2 kernels before k2: the graph begins here"]
    assert [each.why for each in life.events if each.what == "read by k2"] == [
        "it is kept for its next use: there is room"
    ]
    assert life.events[-1].why == "a clean copy rests at home"


def test_without_room_it_comes_as_soon_as_its_place_is_free() -> None:
    life = told(8192 + 300).life("a")
    assert fetches(life) == [
        "2 kernels before k2: the graph begins here",
        "right before k4: the budget has no room for it while k3 runs",
    ]
    assert "released before its next use" in next(
        each.why for each in life.events if each.what == "read by k2"
    )


@pytest.mark.parametrize(
    ("passes", "value", "why"),
    [
        ("place,stream,offload,prefetch{distance_kernels=1},pack", "a", "distance_kernels=1"),
        (
            "place,stream,offload,pack",
            "a",
            "where place,stream,offload,pack puts it",
        ),
        ("place,stream,offload,prefetch,pack", "c", "it queues behind the fetch of a"),
    ],
)
def test_what_stops_a_fetch_is_named(passes: str, value: str, why: str) -> None:
    found = told(None, passes)
    assert why in fetches(found.life(value))[0]


def test_the_bytes_that_come_before_it_may_stop_it() -> None:
    (why,) = fetches(told(None, "place,stream,offload,prefetch{distance_bytes=1},pack").life("b"))
    assert (
        why == "1 kernel before k3: 8.0 KiB are on their way already, distance_bytes allows no more"
    )


def test_a_value_that_was_just_released_is_fetched_no_earlier() -> None:
    found = told(None, "place,stream,offload,prefetch,pack")
    assert fetches(found.life("a"))[1] == "1 kernel before k4: its last copy is released here"


def test_a_plan_that_broke_the_budget_is_among_what_was_rejected() -> None:
    found = told(None)
    rejected = Told(
        found.schedule, found.stages, found.pipeline, (Rejected("stream", 5000),), found.placed
    )
    assert "the plan of stream: it needs 5000 B" in rejected.life("a").rejected[-1]


def test_what_is_not_managed_has_a_life_too() -> None:
    life = told(None).life("y")
    assert (life.home, life.why) == (Tier.DEVICE, "it is made, used and freed on the device")
    assert [each.what for each in life.events] == ["made or changed by k4"]
    assert told(None).life("x").why == "somebody outside holds it"


def test_every_fetch_and_wait_is_told() -> None:
    found = told(20_000)
    for value in ("a", "b"):
        life = found.life(value)
        steps = {each.step for each in life.events}
        wanted = {
            at
            for at, step in enumerate(found.schedule.steps)
            if isinstance(step, Fetch | Wait) and step.value == value
        }
        assert wanted <= steps


def test_a_long_life_is_cut() -> None:
    life = told(None).life("a")
    many = Life(
        Value("a", 1, Role.PARAMETER), "s", Tier.NVME, "so", (), life.events * 20, ("s", "t")
    )
    text = str(many)
    assert "more" in text
    assert text.endswith("also in t")
