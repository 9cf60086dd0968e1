"""One thread unless threads are the point: two cores are shared with other tests."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
