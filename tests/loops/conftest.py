"""One thread, a fresh compiler, and a folder for homes beside the tests."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("tests.loops.playing", "tests.loops.homes")


@pytest.fixture(autouse=True)
def one_thread() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def swap_dir() -> Generator[Path]:
    # pytest's own folders may lie in memory, where files move no disk.
    with tempfile.TemporaryDirectory(prefix="zinf-loops-", dir=Path(__file__).parents[1]) as folder:
        yield Path(folder)
