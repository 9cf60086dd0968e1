"""The tables at the end."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from zcompile.demo.job import Job
from zcompile.demo.loop import Iteration
from zcompile.demo.summary import (
    PROCESS_PEAK,
    Comparison,
    Outcome,
    comparison_table,
    results_table,
)
from zcompile.report.stats import Stats
from zcompile.runtime.ledger import Channel, Ledger, Snapshot

ITERATIONS = (Iteration(0, 3.0, 30.0), Iteration(1, 2.5, 4.0), Iteration(2, 2.0, 2.0))


def counted(*read_bytes: int) -> tuple[Snapshot, ...]:
    """Return a snapshot for each iteration, which read so many bytes and waited a second."""
    ledger = Ledger()
    laps: list[Snapshot] = []
    for nbytes in read_bytes:
        ledger.moved(Channel.NVME_READ, nbytes)
        ledger.exposed(Channel.NVME_READ, 1.0)
        laps.append(ledger.lap())
    return tuple(laps)


def outcome(*read_bytes: int, peak_bytes: int | None = 500 << 20) -> Outcome:
    stats = Stats(
        total=Ledger().snapshot(),
        iterations=counted(*read_bytes),
        planned_peak_bytes=400 << 20,
        device_budget=512 << 20,
        host_budget=None,
    )
    return Outcome(
        job=Job(steps=3, batch=1, sequence=30),
        num_parameters=1 << 20,
        iterations=ITERATIONS,
        peak_bytes=peak_bytes,
        compiler_bytes=100 << 20,
        stats=stats,
    )


def rows(table: Table) -> dict[str, str]:
    shown = StringIO()
    Console(file=shown, width=120).print(table)
    cells = [line.split("│")[1:-1] for line in shown.getvalue().splitlines() if "│" in line]
    return {row[0].strip(): row[1].strip() for row in cells}


def test_the_first_iteration_counts_for_no_average() -> None:
    told = rows(results_table(outcome(900 << 20, 100 << 20, 200 << 20)))
    assert told["seconds per iteration (median)"] == "3.00"
    assert told["tokens per second"] == "10"
    assert told["NVMe read, per iteration"] == "150.0 MiB, 1.00 s exposed"
    assert "NVMe write, per iteration" not in told


def test_memory_stands_beside_the_budget_and_what_would_be_needed() -> None:
    told = rows(results_table(outcome(1)))
    assert told["loss, first and last"] == "3.0000, 2.0000"
    assert told["parameters, gradients, Adam's states"] == "16.0 MiB"
    assert told["device budget"] == "512.0 MiB"
    assert told["peak on the device, as planned"] == "400.0 MiB"
    assert told[PROCESS_PEAK] == "400.0 MiB"
    assert told["the compiler's own objects"] == "100.0 MiB"


def test_one_iteration_has_no_peak() -> None:
    told = rows(results_table(outcome(peak_bytes=None)))
    assert PROCESS_PEAK not in told


def test_equal_losses_are_called_so() -> None:
    same = Comparison([1.0, 0.1], [1.0, 0.1])
    assert same.bitwise_equal
    assert same.largest_difference == 0.0
    assert same.verdict() == "every loss is bitwise equal to plain PyTorch's"


def test_unequal_losses_are_measured_and_shown() -> None:
    near = Comparison([1.0, 2.002], [1.0, 2.0])
    assert not near.bitwise_equal
    assert near.largest_difference == pytest.approx(1e-3)
    assert near.verdict() == "largest relative difference from plain PyTorch: 1.0e-03"
    assert rows(comparison_table(near))["2"] == "2.0020000"


def test_runs_of_different_length_do_not_compare() -> None:
    with pytest.raises(ValueError, match="2 losses beside 1"):
        Comparison([1.0, 2.0], [1.0])
