"""What holds of a measured run; the run that schedules nothing has to fail some of them."""

from __future__ import annotations

from tests.e2e.measured import Figures
from zcompile.ir import Tier
from zcompile.runtime.ledger import Channel

SLACK_BYTES = 96 << 20
"""What the process may hold beyond the budgets."""

TOLERANCE = 0.05
"""How far the account of the disk's traffic may be off."""


def check_resident_bytes(figures: Figures, budget_bytes: int) -> None:
    """Check the promise: budget and slack, in every phase, clipping included."""
    for each in figures.steady:
        assert each.peak_bytes <= budget_bytes + SLACK_BYTES, each


def check_accounts_agree(figures: Figures, budget_bytes: int) -> None:
    """Check that planner, ledger and process tell the same story.

    The ledger never sees more than was planned, and misses of it at most the I/O buffers
    that no copy needed; the process is within the slack of both, on either side.
    """
    planned = figures.planned_peak_bytes
    assert planned <= budget_bytes
    for each in figures.steady:
        ledger = each.ledger_peak_bytes[Tier.DEVICE]
        assert planned - figures.buffer_bytes <= ledger <= planned
        assert abs(each.peak_bytes - planned) <= SLACK_BYTES


def check_disk_traffic(figures: Figures) -> None:
    """Check that ``/proc/self/io`` shows what the ledger counted, and the clipping beside it.

    Clipping reads every gradient in the file once, for the norm, and writes it once.
    """
    for each in figures.steady:
        in_file = each.gradient_file_bytes
        read, written = each.moved_bytes[Channel.NVME_READ], each.moved_bytes[Channel.NVME_WRITE]
        assert read + written > 0
        assert near(sum(phase.read_bytes for phase in each.scheduled), read)
        assert near(sum(phase.write_bytes for phase in each.scheduled), written)
        assert near(each.clip.read_bytes, in_file)
        assert near(each.clip.write_bytes, in_file)


def near(measured: int, counted: int) -> bool:
    return abs(measured - counted) <= TOLERANCE * counted


def check_moves_half(figures: Figures) -> None:
    """Check that an iteration writes half of all parameters, gradients and states of Adam."""
    for each in figures.steady:
        assert each.moved_bytes[Channel.NVME_WRITE] >= 2 * figures.parameter_bytes
