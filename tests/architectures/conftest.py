"""One thread, a fresh compiler, and a folder on the disk that holds the checkout."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import forget_what_was_compiled, one_thread, swap_dir

__all__ = ["forget_what_was_compiled", "one_thread", "swap_dir"]

pytest.register_assert_rewrite("tests.architectures.training")
