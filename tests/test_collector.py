"""How often Python's collector runs while a graph is compiled, and afterwards."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
import torch
from torch import nn

from zcompile.collector import NEW_OBJECTS, sparing_the_collector


@pytest.fixture(autouse=True)
def usual() -> Generator[tuple[int, int, int], None, None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def test_an_inner_compilation_leaves_it_to_the_outer_one(usual: tuple[int, int, int]) -> None:
    with sparing_the_collector():
        with sparing_the_collector():
            assert gc.get_threshold() == (NEW_OBJECTS, 10, 10)
        assert gc.get_threshold() == (NEW_OBJECTS, 10, 10)
    assert gc.get_threshold() == usual


def test_an_error_brings_it_back(usual: tuple[int, int, int]) -> None:
    with pytest.raises(RuntimeError, match="halfway"), sparing_the_collector():
        raise RuntimeError("halfway")
    assert gc.get_threshold() == usual


@pytest.mark.parametrize("wanted", [0, NEW_OBJECTS, 10 * NEW_OBJECTS])
def test_what_the_user_wants_stays(wanted: int) -> None:
    gc.set_threshold(wanted)
    with sparing_the_collector():
        assert gc.get_threshold()[0] == wanted
    assert gc.get_threshold()[0] == wanted


def test_a_compiled_iteration_leaves_it_as_it_was(usual: tuple[int, int, int]) -> None:
    model = torch.compile(nn.Linear(4, 4), backend="zinf", options={"compute": "eager"})
    model(torch.ones(2, 4)).sum().backward()
    assert gc.get_threshold() == usual
