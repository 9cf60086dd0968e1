"""`zcompile.stats`: what a compiled model has held, moved and waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from torch import nn

from zcompile.bridge.torch_private import original_of
from zcompile.ir import Tier
from zcompile.report.owner import session_of
from zcompile.report.units import CHANNEL_LABELS, mebibytes
from zcompile.runtime.ledger import Channel, Snapshot
from zcompile.session import Session

TABLE_WIDTH = 100

MAX_NAMES = 4
"""How many parameters a remark lists."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The account of one compiled model.

    ``total`` counts from the start; ``iterations`` has one entry for each of the last
    optimizer steps, counted on its own.  A snapshot has ``moved_bytes`` and
    ``exposed_seconds`` by channel and ``peak_bytes`` by tier.  ``planned_peak_bytes`` is the
    most that any plan of the model lets the device hold.  A budget is ``None`` if not given.

    ``planned_seconds`` is what an iteration takes by simulation, each graph once, on the machine
    of the option ``target``; ``None`` without one, or where it gives no time to some operation.

    ``outside_bytes`` is what ran outside the compiled graphs has read of homes in files, by
    cause, in whole pages.  ``unused`` gives the bytes of each parameter that is in no graph:
    it stays in ordinary memory.  Of a compiled function that is not known.

    ``ddp_bucket_bytes`` is what DDP holds of all gradients, in ordinary memory, which is in
    no budget and no peak.

    ``early_updates`` counts parameters whose update began while backward ran, by what became
    of them: ``adopted``, or ``made again`` because something was not as foretold, or ``failed``
    because a file could not be read or written, and made again.

    ``made_again_bytes`` is what backward makes again, by the plans at hand, of what forward saves.
    """

    total: Snapshot
    iterations: tuple[Snapshot, ...]
    planned_peak_bytes: int
    device_budget: int | None
    host_budget: int | None
    outside_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    unused: Mapping[str, int] = field(default_factory=dict[str, int])
    ddp_bucket_bytes: int = 0
    early_updates: Mapping[str, int] = field(default_factory=dict[str, int])
    planned_seconds: float | None = None
    made_again_bytes: int = 0

    def __str__(self) -> str:
        text = StringIO()
        Console(file=text, width=TABLE_WIDTH, no_color=True).print(self)
        return text.getvalue().rstrip()

    def __rich__(self) -> Group:
        return Group(self._table(), *(Text(line) for line in self._remarks()))

    def _remarks(self) -> Iterator[str]:
        for cause, nbytes in self.outside_bytes.items():
            yield f"{mebibytes(nbytes)} read outside the graphs: {cause}"
        if self.early_updates:
            fates = ", ".join(f"{number} {fate}" for fate, number in self.early_updates.items())
            yield f"updates of parameters begun while backward ran: {fates}"
        if self.planned_seconds is not None:
            yield f"an iteration as planned takes {self.planned_seconds:.3g} s"
        if self.made_again_bytes:
            size = mebibytes(self.made_again_bytes)
            yield f"{size} of what forward saves are made again by backward"
        if self.unused:
            more = ["..."] if len(self.unused) > MAX_NAMES else []
            names = ", ".join([*[*self.unused][:MAX_NAMES], *more])
            size = mebibytes(sum(self.unused.values()))
            yield f"{size} of parameters in no graph, in ordinary memory: {names}"

    def _table(self) -> Table:
        number = len(self.iterations)
        title = f"{number} iterations" if number else "no optimizer step so far"
        table = Table(title=title, title_justify="left")
        for heading in ("", "in all", *(["last iteration"] if number else [])):
            table.add_column(heading, justify="right" if heading else "left")
        columns = (self.total, *self.iterations[-1:])
        for channel in Channel:
            cells = [copied(each, channel) for each in columns]
            if any(cells):
                table.add_row(CHANNEL_LABELS[channel], *cells)
        eager = [mebibytes(each.eager_bytes) for each in columns]
        if self.total.eager_bytes:
            table.add_row("read outside the graphs", *eager)
        for tier in Tier:
            peaks = [mebibytes(each.peak_bytes[tier]) for each in columns]
            table.add_row(f"{tier} peak{self._limit(tier)}", *peaks)
        table.add_row("device peak as planned", mebibytes(self.planned_peak_bytes))
        if self.ddp_bucket_bytes:
            table.add_row("DDP's buckets, outside the budgets", mebibytes(self.ddp_bucket_bytes))
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
        session.leaving.bytes_by_cause(),
        _unused(original_of(model), session) if callable(model) else {},
        session.buckets.nbytes,
        session.early_updates,
        session.planner.seconds,
        sum(each.made_again_bytes for each in session.planner.plans()),
    )


def _unused(owner: object, session: Session) -> Mapping[str, int]:
    """Return the bytes of the parameters of ``owner`` that no graph of ``session`` has."""
    if not isinstance(owner, nn.Module):
        return {}
    return {
        name: each.nbytes
        for name, each in owner.named_parameters()
        if not session.is_in_a_graph(each)
    }
