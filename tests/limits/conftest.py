"""The same surroundings as for whole trainings."""

from __future__ import annotations

from tests.e2e.conftest import forget_what_was_compiled, one_thread, swap_dir

__all__ = ["forget_what_was_compiled", "one_thread", "swap_dir"]
