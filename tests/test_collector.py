"""Python's collector after a compilation, and when somebody else has set objects aside."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
import torch
from torch import nn

from zcompile.collector import sparing_the_collector


@pytest.fixture(autouse=True)
def _nothing_set_aside() -> Generator[None, None, None]:
    assert gc.get_freeze_count() == 0
    yield
    gc.unfreeze()


def test_an_inner_compilation_leaves_what_the_outer_one_set_aside() -> None:
    with sparing_the_collector() as outer:
        with sparing_the_collector() as inner:
            assert outer.ours
            assert not inner.ours
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_more_sets_aside_what_has_come_since() -> None:
    with sparing_the_collector() as spared:
        before = gc.get_freeze_count()
        kept = [[each] for each in range(1000)]
        spared.more()
        assert gc.get_freeze_count() >= before + len(kept)


def test_an_error_brings_everything_back() -> None:
    with pytest.raises(RuntimeError, match="halfway"), sparing_the_collector():
        raise RuntimeError("halfway")
    assert gc.get_freeze_count() == 0


def test_what_the_user_set_aside_stays_so() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    with sparing_the_collector() as spared:
        kept = [[each] for each in range(1000)]
        spared.more()
        assert gc.get_freeze_count() <= before
        assert kept
    assert gc.get_freeze_count() > 0


def test_a_compiled_iteration_leaves_nothing_set_aside() -> None:
    model = torch.compile(nn.Linear(4, 4), backend="zinf", options={"compute": "eager"})
    model(torch.ones(2, 4)).sum().backward()
    assert gc.get_freeze_count() == 0
