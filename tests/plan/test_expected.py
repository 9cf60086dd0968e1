"""The expected update of a large model is timed by an excerpt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plan.iterations import MACHINE
from zcompile.ir import Role, Target, Tier, Value
from zcompile.passes.expected import ExpectedUpdate, excerpt, expected_update
from zcompile.passes.pipeline import TIMED, run_fastest

PAGE = 4096


def update_of(num: int) -> tuple[ExpectedUpdate, dict[str, Tier]]:
    """Return the update of ``num`` parameters of two sizes, every other one on the host."""
    values: list[Value] = []
    for i in range(num):
        nbytes = PAGE * (1 + i // 7 % 2)
        kinds = (("", Role.PARAMETER), (":grad", Role.GRADIENT), (":m", Role.STATE))
        values += [Value(f"p{i}{kind}", nbytes, role) for kind, role in kinds]
    homes = {each.name: Tier.HOST if at // 3 % 2 else Tier.NVME for at, each in enumerate(values)}
    return expected_update(values, replace(MACHINE, memory_bytes_per_s=1e9)), homes


def taken(update: ExpectedUpdate, homes: dict[str, Tier]) -> float:
    target = Target(
        device_budget=20 * PAGE,
        host_budget=1 << 30,
        has_nvme=True,
        homes=homes,
        hardware=MACHINE,
        kernel_seconds={update.schedule.name: update.seconds},
    )
    seconds = run_fastest(TIMED[-1:], update.schedule, target).seconds
    assert seconds is not None
    return seconds


def test_an_excerpt_takes_its_share_of_the_time() -> None:
    update, homes = update_of(300)
    some = excerpt(update, homes, MACHINE, 60)
    assert len(some.update.schedule.steps) == 60
    whole = taken(update, homes)
    assert some.least_s <= whole
    assert some.seconds(taken(some.update, homes)) == pytest.approx(whole, rel=0.05)


def test_a_small_update_is_its_own_excerpt() -> None:
    update, homes = update_of(20)
    some = excerpt(update, homes, MACHINE, 20)
    assert some.update is update
    assert some.seconds(2.0) == 2.0
