"""The same surroundings as for whole trainings; each playing of a loop forgets by itself."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import one_thread, swap_dir

__all__ = ["one_thread", "swap_dir"]

pytest.register_assert_rewrite("tests.loops.playing", "tests.loops.homes")
