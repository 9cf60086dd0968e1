"""Progress while the demo runs: a bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from zcompile.demo.job import Job
from zcompile.demo.loop import Iteration

Phase = Callable[[], str]
"""Asked for what is going on at each redraw: the first step is long and does many things."""


class _PhaseColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        phase: Phase = task.fields["phase"]
        return Text(phase(), style="bold")


class Screen:
    """Shows one activity after the other on ``console``."""

    def __init__(self, console: Console, job: Job) -> None:
        self._console = console
        self._job = job

    @contextmanager
    def activity(self, text: str) -> Generator[None]:
        """Show that something of unknown length is going on, and afterwards how long it took."""
        started = perf_counter()
        if self._console.is_terminal:
            with self._progress() as bar:
                bar.add_task("", total=None, phase=lambda: text)
                yield
        else:
            yield
        self._print(f"{text}: {perf_counter() - started:.1f} s")

    def iterations(
        self, phase: Phase, iterations: Iterator[Iteration], extra: Callable[[], str] = str
    ) -> Iterator[Iteration]:
        """Yield what ``iterations`` yields and show each, followed by what ``extra`` says."""
        if not self._console.is_terminal:
            for each in iterations:
                self._print(
                    f"step {each.number + 1}/{self._job.steps}: {self._status(each)}{extra()}"
                )
                yield each
            return
        with self._progress(MofNCompleteColumn(), TextColumn("{task.fields[status]}")) as bar:
            task = bar.add_task("", total=self._job.steps, phase=phase, status="")
            for each in iterations:
                bar.update(task, advance=1, status=self._status(each) + extra())
                yield each

    def _status(self, iteration: Iteration) -> str:
        tokens_per_second = self._job.num_tokens / iteration.seconds
        return f"loss {iteration.loss:.4f}, {tokens_per_second:.0f} tokens/s"

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _progress(self, *columns: ProgressColumn) -> Progress:
        return Progress(
            _PhaseColumn(),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            *columns,
            console=self._console,
            transient=True,
        )
