"""The tables at the end of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from rich.table import Table

from zcompile.demo.job import Job
from zcompile.demo.loop import Iteration
from zcompile.ir import Tier
from zcompile.report.stats import Stats
from zcompile.report.units import CHANNEL_LABELS, mebibytes
from zcompile.runtime.ledger import Channel

ADAM_BYTES_PER_PARAMETER = 16
"""A parameter, its gradient and Adam's two states, each in fp32."""

PROCESS_PEAK = "memory of the process (RSS), at its peak"
"""What is called so is more than the device holds: Python and its libraries are in it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a finished run measured.

    ``peak_bytes`` is the resident memory of the process above what it was before the model
    existed: the most there was from the second iteration on, ``None`` if there was only one.
    ``compiler_bytes`` of it are graphs and other objects that tracing and compiling left.
    """

    job: Job
    num_parameters: int
    iterations: Sequence[Iteration]
    peak_bytes: int | None
    compiler_bytes: int
    stats: Stats

    @property
    def steady(self) -> Sequence[Iteration]:
        """The iterations after the first, which also traces, plans and compiles."""
        return self.iterations[1:] or self.iterations

    @property
    def seconds_per_iteration(self) -> float:
        return median(each.seconds for each in self.steady)


def results_table(outcome: Outcome) -> Table:
    """Return losses, memory, bytes moved and seconds waited, one a row."""
    table = Table(title="fine-tuning SmolLM2-135M", show_header=False, title_justify="left")
    for what, figure in _rows(outcome):
        table.add_row(what, figure)
    return table


def _rows(outcome: Outcome) -> list[tuple[str, str]]:
    stats, losses = outcome.stats, [each.loss for each in outcome.iterations]
    seconds = outcome.seconds_per_iteration
    states_bytes = outcome.num_parameters * ADAM_BYTES_PER_PARAMETER
    budget = stats.device_budget
    return [
        ("loss, first and last", f"{losses[0]:.4f}, {losses[-1]:.4f}"),
        ("seconds per iteration (median)", f"{seconds:.2f}"),
        ("tokens per second", f"{outcome.job.num_tokens / seconds:.0f}"),
        ("parameters, gradients, Adam's states", mebibytes(states_bytes)),
        ("device budget", "none" if budget is None else mebibytes(budget)),
        ("peak on the device, as planned", mebibytes(stats.planned_peak_bytes)),
        ("peak on the device, as counted", mebibytes(stats.total.peak_bytes[Tier.DEVICE])),
        *_measured(outcome),
        *_per_iteration(stats),
    ]


def _measured(outcome: Outcome) -> list[tuple[str, str]]:
    if outcome.peak_bytes is None:
        return []
    return [
        (PROCESS_PEAK, mebibytes(outcome.peak_bytes - outcome.compiler_bytes)),
        ("the compiler's own objects", mebibytes(outcome.compiler_bytes)),
    ]


def _per_iteration(stats: Stats) -> list[tuple[str, str]]:
    """Average over the iterations after the first, in which weights also move home."""
    steady = stats.iterations[1:] or stats.iterations
    if not steady:
        return []
    moved = _average([each.moved_bytes for each in steady])
    waited = _average([each.exposed_seconds for each in steady])
    return [
        (
            f"{CHANNEL_LABELS[channel]}, per iteration",
            f"{mebibytes(round(moved[channel]))}, {waited[channel]:.2f} s exposed",
        )
        for channel in Channel
        if moved[channel] or waited[channel]
    ]


def _average(
    counts: Sequence[Mapping[Channel, int]] | Sequence[Mapping[Channel, float]],
) -> dict[Channel, float]:
    return {channel: mean(each[channel] for each in counts) for channel in Channel}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The losses of two runs of one job, step by step."""

    ours: Sequence[float]
    plain: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.ours) != len(self.plain):
            raise ValueError(f"{len(self.ours)} losses beside {len(self.plain)}")

    @property
    def largest_difference(self) -> float:
        """The largest difference of two losses, as a part of the plain one."""
        return max(abs(a - b) / abs(b) for a, b in zip(self.ours, self.plain, strict=True))

    @property
    def bitwise_equal(self) -> bool:
        return self.ours == self.plain

    def verdict(self) -> str:
        """Say in a sentence how the two runs compare."""
        if self.bitwise_equal:
            return "every loss is bitwise equal to plain PyTorch's"
        return f"largest relative difference from plain PyTorch: {self.largest_difference:.1e}"


def comparison_table(comparison: Comparison) -> Table:
    """Return the two columns of losses side by side."""
    table = Table(title="losses", title_justify="left")
    table.add_column("step", justify="right")
    table.add_column("zinf", justify="right")
    table.add_column("plain PyTorch", justify="right")
    table.add_column("difference", justify="right")
    rows = zip(comparison.ours, comparison.plain, strict=True)
    for number, (ours, plain) in enumerate(rows, start=1):
        table.add_row(f"{number}", f"{ours:.7f}", f"{plain:.7f}", f"{ours - plain:.1e}")
    return table
