"""Findings as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from zcompile.doctor.finding import Finding, Status, warnings_among

_STYLES = {Status.OK: "green", Status.NOTE: "dim", Status.WARNING: "yellow"}
_MARKS = {Status.OK: "ok", Status.NOTE: "", Status.WARNING: "warning"}


def shown(findings: Sequence[Finding]) -> RenderableType:
    """Return a table of all findings, each with its remedy, and a line that counts the warnings."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    # Nothing is cut: a word that does not fit goes on in the next line.
    table.add_column("subject", overflow="fold", min_width=13, max_width=18)
    table.add_column("status", overflow="fold", width=7)
    table.add_column("finding", overflow="fold", ratio=1)
    for section, members in groupby(findings, key=lambda each: each.section):
        table.add_row(Text(section, style="bold"), "", "")
        for each in members:
            mark = Text(_MARKS[each.status], style=_STYLES[each.status])
            table.add_row(Text(each.subject), mark, _told(each))
    count = len(warnings_among(findings))
    ending = "nothing to warn of" if count == 0 else f"{count} to look at: all work goes on without"
    return Group(table, Text(ending))


def _told(finding: Finding) -> Text:
    told = Text(finding.says)
    if finding.remedy is not None:
        told.append(f"\n-> {finding.remedy}", style="bold")
    return told
