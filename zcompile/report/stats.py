"""`zcompile.stats`: what a compiled model has held, moved and waited for."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO

from rich.console import Console
from rich.table import Table

from zcompile.ir import Tier
from zcompile.report.owner import session_of
from zcompile.report.units import CHANNEL_LABELS, mebibytes
from zcompile.runtime.ledger import Channel, Snapshot

TABLE_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Stats:
    """The account of one compiled model.

    ``total`` counts from the start; ``iterations`` has one entry for each of the last
    optimizer steps, counted on its own.  A snapshot has ``moved_bytes`` and
    ``exposed_seconds`` by channel and ``peak_bytes`` by tier.  ``planned_peak_bytes`` is the
    most that any plan of the model lets the device hold.  A budget is ``None`` if not given.
    """

    total: Snapshot
    iterations: tuple[Snapshot, ...]
    planned_peak_bytes: int
    device_budget: int | None
    host_budget: int | None

    def __str__(self) -> str:
        text = StringIO()
        Console(file=text, width=TABLE_WIDTH, no_color=True).print(self)
        return text.getvalue().rstrip()

    def __rich__(self) -> Table:
        table = Table(title=f"{len(self.iterations)} iterations", title_justify="left")
        for heading in ("", "in all", "last iteration"):
            table.add_column(heading, justify="right" if heading else "left")
        columns = (self.total, *self.iterations[-1:])
        for channel in Channel:
            cells = [copied(each, channel) for each in columns]
            if any(cells):
                table.add_row(CHANNEL_LABELS[channel], *cells)
        for tier in Tier:
            peaks = [mebibytes(each.peak_bytes[tier]) for each in columns]
            table.add_row(f"{tier} peak{self._limit(tier)}", *peaks)
        table.add_row("device peak as planned", mebibytes(self.planned_peak_bytes))
        return table

    def _limit(self, tier: Tier) -> str:
        budget = {Tier.DEVICE: self.device_budget, Tier.HOST: self.host_budget}.get(tier)
        return "" if budget is None else f" (budget {mebibytes(budget)})"


def copied(counted: Snapshot, channel: Channel) -> str:
    """Return what went over ``channel`` and what of it was not hidden; empty for nothing."""
    moved, waited = counted.moved_bytes[channel], counted.exposed_seconds[channel]
    return f"{mebibytes(moved)}, {waited:.2f} s exposed" if moved or waited else ""


def stats(model: object) -> Stats:
    """Return what ``model`` has held, moved and waited for under its latest options.

    ``model`` is what ``torch.compile`` returned, or what was given to it.  Raises
    ``ValueError`` if it was not compiled by this backend or has not run yet.
    """
    session = session_of(model)
    return Stats(
        session.total(),
        session.iterations(),
        session.planned_peak_bytes,
        session.options.device_budget,
        session.options.host_budget,
    )
