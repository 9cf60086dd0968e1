"""A fresh compiler and one thread for every test."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> None:
    torch.compiler.reset()
    torch.set_num_threads(1)
