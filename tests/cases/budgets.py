"""A case under budgets: with room for everything, and little above the least that works."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import zcompile
from tests.cases.run import Case, OptionsOf, Run
from tests.e2e.jobs import same_bits
from zcompile.backend import zinf_backend
from zcompile.bridge.torch_private import original_of
from zcompile.errors import BudgetError
from zcompile.ir import PAGE_BYTES, Tier
from zcompile.passes.placement import resident_bytes
from zcompile.runtime.ledger import Channel

AMPLE: Mapping[str, object] = {"device_budget": "1GiB", "host_budget": "1GiB"}

HEADROOM = 1.1
"""A tight budget is this many times the smallest that works."""


def check(case: Case, swap_dir: Path, compute: str = "eager") -> None:
    """Check that ``case`` sees the same bits with ample and with tight budgets.

    With ``compute="eager"`` they are also those of plain PyTorch.
    """
    ample = run_under(case, lambda _: {**AMPLE, "compute": compute})
    if compute == "eager":
        check_same(ample, run_under(case, None), "ample budgets and plain PyTorch")
    telling = nullcontext() if case.warns is None else pytest.warns(UserWarning, match=case.warns)
    with telling:
        tight = run_tight(case, {"nvme_dir": swap_dir, "compute": compute})
    check_same(tight, ample, "tight and ample budgets")
    for compiled in tight.compiled:
        check_moved(compiled)


def run_under(case: Case, options_of: OptionsOf | None) -> Run:
    """Return ``case`` after a run with a fresh compiler."""
    torch.compiler.reset()
    run = Run(options_of)
    case.act(run)
    return run


def run_tight(case: Case, options: Mapping[str, object]) -> Run:
    """Return ``case`` after a run with little more than the least budgets.

    Every model has a budget of its own, and no two are equal: so an error says whose it is.
    """
    budgets: dict[int, int] = {}
    refused: dict[int, int] = {}

    def options_of(number: int) -> Mapping[str, object]:
        return {**options, "device_budget": budgets.setdefault(number, PAGE_BYTES + number)}

    while True:
        try:
            run = run_under(case, options_of)
        except BudgetError as error:
            (number,) = [key for key, nbytes in budgets.items() if nbytes == error.budget_bytes]
            refused[number] = refused.get(number, 0) + 1
            if refused[number] > case.refusals:
                raise
            least = int(error.smallest_bytes * HEADROOM)
            taken = set(budgets.values())
            budgets[number] = next(each for each in range(least, 2 * least) if each not in taken)
        else:
            assert refused.keys() == budgets.keys(), "a page was enough for a model"
            return run


def check_same(got: Run, want: Run, what: str) -> None:
    """Check that two runs have seen the same bits, in the same order."""
    assert [label for label, _ in got.seen] == [label for label, _ in want.seen], what
    unlike = [
        f"{at}: {label}"
        for at, ((label, a), (_, b)) in enumerate(zip(got.seen, want.seen, strict=True))
        if not same_bits(a, b)
    ]
    assert unlike == [], what
    assert got.seen


def check_moved(compiled: Any) -> None:
    """Check that a compiled model kept its budget, that its homes are away and bytes moved."""
    stats = zcompile.stats(compiled)
    assert stats.total.moved_bytes[Channel.NVME_READ] > 0
    assert stats.device_budget is not None
    assert stats.total.peak_bytes[Tier.DEVICE] <= stats.planned_peak_bytes <= stats.device_budget
    planner = zinf_backend.sessions(original_of(compiled))[-1].planner
    total = sum(each.nbytes for each in planner.values)
    assert resident_bytes(planner.placement, planner.values) <= total / 2
