"""What the tests of the native library share: the library, which has to be there."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import one_thread
from zcompile.runtime.native import Native, load

__all__ = ["native", "one_thread"]


@pytest.fixture(scope="session")
def native() -> Native:
    library = load()
    assert isinstance(library, Native), library.reason
    return library
