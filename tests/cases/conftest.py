"""What the end-to-end tests have: one thread, a fresh compiler, and a folder on a disk."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import forget_what_was_compiled, one_thread, swap_dir

__all__ = ["forget_what_was_compiled", "one_thread", "swap_dir"]

pytest.register_assert_rewrite("tests.cases.budgets")
