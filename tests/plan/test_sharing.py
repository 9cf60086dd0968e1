"""Shared resources: nobody overdraws one, nobody is slowed for nothing, and it is fair."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import many
from zcompile.ir.hardware import Shares
from zcompile.passes.sharing import speeds

RESOURCES = ("cores", "disk", "bus")
shares = st.sampled_from([0.1, 0.25, 0.5, 0.8, 1.0])
uses = st.dictionaries(
    st.sampled_from(["compute", "read", "write", "h2d", "d2h"]),
    st.dictionaries(st.sampled_from(RESOURCES), shares).map(lambda each: tuple(each.items())),
    min_size=1,
)


def load(found: Mapping[str, float], taking: Mapping[str, Shares], resource: str) -> float:
    return sum(speed * dict(taking[each]).get(resource, 0.0) for each, speed in found.items())


@many
@given(uses)
def test_no_resource_is_overdrawn_and_every_slow_one_is_held_up_by_a_full_one(
    taking: Mapping[str, Shares],
) -> None:
    found = speeds(tuple(taking), taking)
    assert found.keys() == taking.keys()
    loads = {resource: load(found, taking, resource) for resource in RESOURCES}
    assert all(each <= 1 + 1e-9 for each in loads.values())
    for name, speed in found.items():
        assert 0 < speed <= 1
        if speed < 1:
            full = [each for each, _ in taking[name] if loads[each] > 1 - 1e-9]
            # Fair: at one full resource of its own nobody else is faster.
            assert any(
                all(
                    found[other] <= speed + 1e-9
                    for other, theirs in taking.items()
                    if each in dict(theirs)
                )
                for each in full
            )


@many
@given(uses)
def test_the_order_does_not_matter(taking: Mapping[str, Shares]) -> None:
    assert speeds(sorted(taking), taking) == speeds(sorted(taking, reverse=True), taking)


def test_what_is_left_by_a_slow_one_goes_to_the_others() -> None:
    taking = {
        "read": (("disk", 1.0), ("cores", 0.5)),
        "write": (("disk", 1.0),),
        "compute": (("cores", 1.0),),
    }
    found = speeds(tuple(taking), taking)
    assert found == pytest.approx({"read": 0.5, "write": 0.5, "compute": 0.75})
