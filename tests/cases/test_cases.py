"""Every case with ample and with tight budgets: bits are those of plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import edits, gradients, several, sharing
from tests.cases.budgets import check
from tests.cases.run import Case, cases_of

# Dynamo looks for gradients of inputs that are no leaves; it hides the warning from people only.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

CASES = [each for module in (sharing, several, gradients, edits) for each in cases_of(module)]


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
