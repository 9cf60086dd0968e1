"""Two processes that train together, with homes in one folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.loops.ranks import check_ranks


def test_ddp_around_a_compiled_model_and_gradients_averaged_by_hand(swap_dir: Path) -> None:
    check_ranks(swap_dir, ["around", "by hand"])


@pytest.mark.slow
def test_ddp_inside_a_compiled_model_and_gradients_that_are_views(swap_dir: Path) -> None:
    check_ranks(swap_dir, ["inside", "around, gradients are views"])
