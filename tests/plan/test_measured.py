"""Seconds of kernels, read off what passed between the moves of a plan."""

from __future__ import annotations

import pytest

from zcompile.ir import Schedule, parse
from zcompile.passes.measured import kernel_seconds, typical


def plan() -> Schedule:
    return parse("""
schedule forward
value %w : 4096 B parameter @ nvme
value %x : 4096 B input @ device
value %a : 4096 B intermediate @ device
value %b : 4096 B intermediate @ device
value %c : 4096 B intermediate @ device
fetch %w <- nvme as t0 at 0
compute first(%x) -> (%a) transient 4096 B
compute second(%a) -> (%b) transient 4096 B
wait %w for t0
compute third(%b, %w) -> (%c) transient 4096 B
release %w
output %c
arena 4096 B
""")


def test_each_gap_is_shared_as_the_estimates_say() -> None:
    found = kernel_seconds(plan(), [0.5, 4.0, 2.0, 0.25], {"first": 1.0, "second": 3.0, "third": 9})
    assert found == pytest.approx({"first": 1.0, "second": 3.0, "third": 2.0})


def test_without_estimates_a_gap_is_shared_equally() -> None:
    found = kernel_seconds(plan(), [0.0, 4.0, 2.0, 0.0], {})
    assert found == pytest.approx({"first": 2.0, "second": 2.0, "third": 2.0})


def test_the_clock_may_stand_still_but_not_go_back() -> None:
    assert kernel_seconds(plan(), [0.0, -1e-9, 0.0, 0.0], {}) == {
        "first": 0.0,
        "second": 0.0,
        "third": 0.0,
    }


@pytest.mark.parametrize("gaps", [[], [1.0, 2.0, 3.0], [1.0] * 5])
def test_gaps_of_another_plan_are_refused(gaps: list[float]) -> None:
    with pytest.raises(ValueError, match=r"forward: \d gaps, but 3 moves"):
        kernel_seconds(plan(), gaps, {})


def test_the_typical_run_is_the_median_of_each_gap() -> None:
    assert typical([[1.0, 9.0], [2.0, 1.0], [30.0, 2.0]]) == [2.0, 2.0]
