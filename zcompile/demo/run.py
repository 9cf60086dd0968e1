"""The demo from start to end."""

from __future__ import annotations

import gc

import torch
from rich.console import Console

from zcompile.demo.budgeted import train_within_budget
from zcompile.demo.plain import run_plain
from zcompile.demo.screen import Screen
from zcompile.demo.setup import Setup
from zcompile.demo.summary import Comparison, Outcome, comparison_table, results_table
from zcompile.demo.swap import swap_folder

MAX_DIFFERENCE = 1e-3
"""How far, relatively, the losses of Inductor's kernels may be from those of plain PyTorch."""


def run_demo(setup: Setup, console: Console) -> bool:
    """Fine-tune, print what it took, and say whether the losses are as they must be."""
    torch.set_num_threads(setup.job.threads)
    screen = Screen(console, setup.job)
    with swap_folder(setup.swap_dir) as swap_dir:
        outcome, reports = train_within_budget(setup, swap_dir, screen)
        # The model is gone by now; its homes must go before the folder that they lie in.
        gc.collect()
    console.print(results_table(outcome))
    for report in reports[:1]:
        console.print(f"the schedule of {report.name}, in part:")
        console.print(str(report), markup=False, highlight=False, soft_wrap=True)
    return not setup.check or _losses_agree(setup, outcome, screen, console)


def _losses_agree(setup: Setup, outcome: Outcome, screen: Screen, console: Console) -> bool:
    steps = run_plain(setup.weights, setup.job)
    plain = screen.iterations(lambda: "the same in plain PyTorch", steps)
    comparison = Comparison(
        [each.loss for each in outcome.iterations], [each.loss for each in plain]
    )
    console.print(comparison_table(comparison))
    console.print(comparison.verdict())
    if setup.compute == "eager":
        return comparison.bitwise_equal
    return comparison.largest_difference <= MAX_DIFFERENCE
