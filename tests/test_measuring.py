"""Which runs are measured, and when they are handed over."""

from __future__ import annotations

from typing import Any, cast

import pytest

from zcompile.ir import Schedule
from zcompile.measuring import Measuring
from zcompile.runtime.executor import Executor
from zcompile.runtime.stopwatch import Stopwatch

PLAN = Schedule("forward", (), ())
NO_EXECUTOR = cast(Executor, object())


def run(measuring: Measuring, plan: Schedule = PLAN) -> Any:
    with measuring.watching(plan, NO_EXECUTOR) as watched:
        return watched


def test_the_first_run_does_not_count_and_the_last_iteration_hands_over() -> None:
    measuring = Measuring(3)
    for _ in range(2):
        assert isinstance(run(measuring), Stopwatch)
        assert measuring.iteration_ended() is None
    run(measuring)
    measured = measuring.iteration_ended()
    assert measured is not None
    plan, runs = measured["forward"]
    assert plan is PLAN
    assert len(runs) == 2


def test_afterwards_nothing_is_watched() -> None:
    measuring = Measuring(1)
    run(measuring)
    run(measuring)
    assert measuring.iteration_ended() is not None
    assert run(measuring) is NO_EXECUTOR
    assert measuring.iteration_ended() is None


def test_none_are_none() -> None:
    measuring = Measuring(0)
    assert run(measuring) is NO_EXECUTOR
    assert measuring.iteration_ended() is None


def test_a_run_that_fails_is_not_measured() -> None:
    measuring = Measuring(1)
    run(measuring)
    with pytest.raises(RuntimeError), measuring.watching(PLAN, NO_EXECUTOR):
        raise RuntimeError
    assert measuring.iteration_ended() is None


def test_a_plan_that_replaces_another_is_measured_anew() -> None:
    measuring = Measuring(1)
    for _ in range(3):
        run(measuring)
    other = Schedule("forward", (), ())
    run(measuring, other)
    assert measuring.iteration_ended() is None


def test_what_moves_nothing_is_measured_as_a_whole_and_what_varies_not_at_all() -> None:
    measuring = Measuring(1)
    for sizes in (None, None, {"s0": 3}):
        with measuring.watching(PLAN, None, sizes) as nothing:
            assert nothing is None
    measured = measuring.iteration_ended()
    assert measured is not None
    ((gap,),) = measured["forward"][1]
    assert gap >= 0.0
