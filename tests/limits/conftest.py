"""One thread, a fresh compiler, and a folder for homes on the disk that holds the checkout."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

pytest.register_assert_rewrite("tests.e2e.sides")

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def one_thread() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> None:
    torch.compiler.reset()


@pytest.fixture
def swap_dir() -> Generator[Path]:
    # pytest's own folders may lie in memory, where files count as resident and move no disk.
    with tempfile.TemporaryDirectory(prefix="zinf-limits-", dir=ROOT / "tests") as folder:
        yield Path(folder)
