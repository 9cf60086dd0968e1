"""What the demo shows while it runs."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from zcompile.demo.job import Job
from zcompile.demo.loop import Iteration
from zcompile.demo.screen import Screen

JOB = Job(steps=2, batch=2, sequence=50)
ITERATIONS = [Iteration(0, 2.5, 4.0), Iteration(1, 1.25, 0.5)]


def test_without_a_terminal_there_are_plain_lines() -> None:
    text = StringIO()
    screen = Screen(Console(file=text, width=40), JOB)
    with screen.activity("loading"):
        assert text.getvalue() == ""
    shown = screen.iterations(lambda: "training", iter(ITERATIONS), lambda: ", process +1.0 MiB")
    assert list(shown) == ITERATIONS
    assert text.getvalue().splitlines() == [
        "loading: 0.0 s",
        "step 1/2: loss 2.5000, 25 tokens/s, process +1.0 MiB",
        "step 2/2: loss 1.2500, 200 tokens/s, process +1.0 MiB",
    ]


def test_a_terminal_has_a_bar_with_the_phase_of_the_moment() -> None:
    text = StringIO()
    console = Console(file=text, width=120, force_terminal=True, color_system=None)
    screen = Screen(console, JOB)
    with screen.activity("loading"):
        pass
    phases = ["training", "tracing"]
    for iteration in screen.iterations(lambda: phases[-1], iter(ITERATIONS)):
        assert iteration in ITERATIONS
        del phases[1:]
    for shown in ("loading: 0.0 s", "tracing", "training", "2/2", "loss 1.2500, 200 tokens/s"):
        assert shown in text.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_an_error_passes_through(terminal: bool) -> None:
    screen = Screen(Console(file=StringIO(), force_terminal=terminal), JOB)
    with pytest.raises(KeyError), screen.activity("loading"):
        raise KeyError
