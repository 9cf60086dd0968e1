"""A fresh compiler for every test."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> None:
    # Every model here has the same class, and Dynamo compiles one piece of code only so often.
    torch.compiler.reset()
    torch.set_num_threads(1)
