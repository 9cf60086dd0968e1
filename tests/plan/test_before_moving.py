"""An update that comes between a new placement and the move to it is planned for what is there."""

from __future__ import annotations

import pytest

from zcompile.ir import Role, Target, Tier, Value
from zcompile.passes.placement import Placement, before_moving

VALUES = (
    Value("a", 100, Role.PARAMETER, Tier.DEVICE),
    Value("b", 30, Role.PARAMETER, Tier.DEVICE),
    Value("a:momentum", 7, Role.STATE, Tier.DEVICE),
)

TARGET = Target(device_budget=1000, reserved_bytes=50)


def placed(*on_device: str) -> Placement:
    return Placement({e.name: Tier.DEVICE if e.name in on_device else Tier.NVME for e in VALUES})


@pytest.mark.parametrize(
    ("before", "after", "more_bytes"),
    [
        (placed("a"), placed("b"), 70),
        (placed("b"), placed("a"), 0),
        (placed("a", "b"), placed(), 130),
        (placed("a"), placed("a:momentum"), 100),
        (placed("a", "b"), placed("a", "b"), 0),
    ],
)
def test_what_has_yet_to_leave_counts(before: Placement, after: Placement, more_bytes: int) -> None:
    found = before_moving(TARGET, VALUES, before, after)
    assert found.reserved_bytes == TARGET.reserved_bytes + more_bytes


def test_before_the_first_placement_nothing_is_there() -> None:
    assert before_moving(TARGET, VALUES, None, placed("a")) is TARGET
