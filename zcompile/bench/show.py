"""Progress while it runs, and the table at the end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import groupby

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from zcompile.bench.figure import Figure, Measured, Unit
from zcompile.bench.measure import Progress

_SHOWN_AS = {
    Unit.BYTES_PER_S: (1e9, "GB/s"),
    Unit.FLOPS_PER_S: (1e9, "GFLOP/s"),
    Unit.SECONDS: (1e-6, "us"),
    Unit.SECONDS_PER_PARAMETER: (1e-9, "ns/parameter"),
    Unit.PROCESSORS: (1.0, "processors"),
    Unit.PART: (1.0, "of its own"),
}


@contextmanager
def progress_on(console: Console) -> Generator[Progress]:
    """Lend a function that shows each stage on a terminal; elsewhere it shows nothing."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        done = -1

        def show(title: str, num_stages: int) -> None:
            nonlocal done
            done += 1
            bar.update(task, description=title, total=num_stages, completed=done)

        yield show


def figures_table(measured: Measured) -> Table:
    """Return a table of all figures: median, quartiles, and the part of the limit reached."""
    table = Table(box=box.SIMPLE, pad_edge=False, title_justify="left")
    table.add_column("what", overflow="fold", ratio=1)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("quartiles", justify="right", no_wrap=True)
    table.add_column("of limit", justify="right", no_wrap=True)
    for group, members in groupby(measured.figures, key=lambda each: each.group):
        table.add_row(Text(group, style="bold"))
        for each in members:
            table.add_row(f"  {_what(each)}", *_cells(each))
    return table


def _what(figure: Figure) -> str:
    if figure.threads is None:
        return figure.name
    return f"{figure.name}, {figure.threads} thread{'' if figure.threads == 1 else 's'}"


def _cells(figure: Figure) -> tuple[str, ...]:
    factor, unit = _SHOWN_AS[figure.unit]
    spread = figure.spread
    return (
        _number(spread.median / factor),
        unit,
        f"{_number(spread.low / factor)} to {_number(spread.high / factor)}",
        "" if figure.of_limit is None else f"{figure.of_limit.median:.0%}",
    )


def _number(value: float) -> str:
    """Return three digits that count.

    >>> _number(0.01234), _number(1.2345), _number(1234.5)
    ('0.0123', '1.23', '1,234')
    """
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
