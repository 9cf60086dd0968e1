"""The least device budget for graphs that have been captured already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from zcompile.errors import BudgetError
from zcompile.ir import PAGE_BYTES
from zcompile.options import Options
from zcompile.planner import Planner
from zcompile.session import Session


def least_budget(session: Session, options: Mapping[str, Any]) -> int:
    """Return the least device budget, as the error names it, for the graphs of ``session``."""
    planner = Planner(Options.parse({**options, "device_budget": PAGE_BYTES}))
    with pytest.raises(BudgetError) as caught:
        planner.announce(each.captured for each in session.planner.plans())
    assert caught.value.option == "device_budget"
    return caught.value.smallest_bytes
