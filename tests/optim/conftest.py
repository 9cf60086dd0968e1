"""One thread unless threads are the point: two cores are shared with other tests."""

from __future__ import annotations

from tests.e2e.conftest import one_thread

__all__ = ["one_thread"]
