"""Lean plans: what they hold is counted without making them, wherever values have their homes."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import captured, many
from zcompile.ir import Schedule, Target, Tier, footprint, peak_bytes
from zcompile.passes.lean import LeanBytes, lean_plan
from zcompile.passes.placement import managed_values


@many
@given(captured, st.randoms(use_true_random=False))
def test_bytes_are_those_of_the_plan(schedule: Schedule, chance: Random) -> None:
    homes = {each.name: chance.choice(list(Tier)) for each in managed_values([schedule])}
    plan = lean_plan(schedule, Target(homes=homes))
    held = footprint(plan)
    found = LeanBytes(schedule).at(homes)
    assert found.vacated == peak_bytes(plan, Target())
    assert found.static == max(held.ordinary, default=0) + max(held.arena, default=0)


def test_a_graph_without_kernels_holds_nothing() -> None:
    found = LeanBytes(Schedule("empty", (), ())).at({})
    assert (found.vacated, found.static) == (0, 0)
