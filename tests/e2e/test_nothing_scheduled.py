"""A program that schedules nothing passes for right, and has to fail here nevertheless.

`IdleBackend` keeps every state in the file, mapped, plans as we do, and runs the graphs as they
were captured: its numbers are those of plain PyTorch.  Each test shows one of our checks that
it fails, and why no such program can pass it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e import checks, plans
from tests.e2e.idle import IdleBackend
from tests.e2e.jobs import JOBS, Training, compiled, differences, train
from tests.e2e.measured import Figures, measure
from tests.e2e.test_budget import resident_home_bytes, train_observed

NAME = "lm-adamw"
BUDGET = 256 << 10
SMALL_BUDGET = 128 << 20
DEPTH = 2


@pytest.fixture(scope="module")
def figures() -> Figures:
    return measure(DEPTH, {"compute": "eager", "device_budget": SMALL_BUDGET}, "idle")


def test_its_numbers_are_right_but_nothing_moves(swap_dir: Path) -> None:
    job, backend = JOBS[NAME], IdleBackend()
    given = {"compute": "eager", "device_budget": BUDGET, "nvme_dir": swap_dir}
    run = Training(job, lambda model: compiled(model, given, backend))
    got = list(run.iterations(3))
    assert differences(got, train(job, lambda model: model, 3)) == []
    session = plans.session_of(backend, run.model)
    plans.check_homes_are_away(session, run.model, run.optimizer)
    with pytest.raises(AssertionError):
        plans.check_bytes_move(session)


def test_pages_of_homes_are_resident_while_its_graphs_run(swap_dir: Path) -> None:
    seen: list[int] = []
    train_observed(IdleBackend(), swap_dir, lambda: seen.append(resident_home_bytes(swap_dir)))
    assert max(seen) > 0


def test_it_writes_nothing_that_its_ledger_would_have_to_show(figures: Figures) -> None:
    with pytest.raises(AssertionError):
        checks.check_moves_half(figures)


def test_its_accounts_do_not_agree(figures: Figures) -> None:
    with pytest.raises(AssertionError):
        checks.check_accounts_agree(figures, SMALL_BUDGET)


def test_the_disk_does_not_follow_its_account(figures: Figures) -> None:
    """Pages stay in the page cache: whatever a ledger claims, hardly a byte is read."""
    with pytest.raises(AssertionError):
        checks.check_disk_traffic(figures)
    last = figures.steady[-1]
    moved = sum(phase.read_bytes for phase in last.scheduled)
    assert moved < figures.parameter_bytes / 2
