"""Every case with ample and with tight budgets: bits are those of plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import (
    activations,
    edits,
    gradients,
    modes,
    optimizers,
    several,
    sharing,
)
from tests.cases.budgets import check, check_moved, check_same, run_tight, run_under
from tests.cases.run import Case, cases_of

# Dynamo looks for gradients of inputs that are no leaves, and makes an object of a Function with
# static methods; it hides the warnings from people only.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning"),
]

MODULES = (sharing, several, gradients, edits, modes, optimizers, activations)

CASES = [each for module in MODULES for each in cases_of(module)]


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if case.slow else []


@pytest.mark.parametrize(
    "case", [pytest.param(each, id=each.name, marks=_marks(each)) for each in CASES]
)
def test_it_gives_the_bits_of_plain_pytorch(case: Case, swap_dir: Path) -> None:
    check(case, swap_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(each, id=each.name) for each in CASES if each.inductor]
)
def test_a_budget_changes_no_bit_of_inductors(case: Case, swap_dir: Path) -> None:
    check(case, swap_dir, "inductor")


@pytest.mark.slow
def test_a_compiled_step_is_that_of_plain_pytorch_where_states_travel(swap_dir: Path) -> None:
    # With everything resident torch compiles the update too, and rounds it as it likes.
    case = Case(optimizers.compiled_training_step)
    tight = run_tight(case, {"nvme_dir": swap_dir, "compute": "eager"})
    check_same(tight, run_under(case, None), "tight budgets and plain PyTorch")
    check_moved(tight.compiled[0])
