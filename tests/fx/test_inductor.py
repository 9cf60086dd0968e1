"""What Inductor compiles, and what it is not given."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.fx.graphs import Spy
from zcompile.bridge.capture import Captured
from zcompile.bridge.emit import emit
from zcompile.bridge.inductor import CompiledSegment, SegmentCompiler
from zcompile.bridge.segments import WHOLE
from zcompile.bridge.sizes import hint

WORDS, WIDTH, LENGTH = 4096, 576, 256


@pytest.fixture(autouse=True)
def two_threads() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.compiler.reset()
    yield
    torch.set_num_threads(before)


def compiled(captured: Captured) -> Any:
    segments = SegmentCompiler().compile(captured.segments, captured.module)
    for each in captured.segments:
        assert each.whole != isinstance(segments[each.name], CompiledSegment)
    module = emit(captured, captured.schedule(hint), segments)
    return partial(module, None)


def test_the_gradient_of_an_embedding_is_summed_in_one_order() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH))
    spy = Spy(compiled, decompose=True)
    call: Any = torch.compile(model, backend=spy)  # pyright: ignore[reportArgumentType]
    words = torch.randint(0, 20, (1, LENGTH))  # each often, so that the order matters

    def gradient() -> Tensor:
        model.zero_grad()
        call(words).square().sum().backward()
        (found,) = (each.grad for name, each in model.named_parameters() if name == "0.weight")
        assert found is not None
        return found.clone()

    first = gradient()
    assert all(torch.equal(gradient(), first) for _ in range(30))
    alone = [each for each in spy.captured["backward"].segments if each.whole]
    assert [each.nodes[-1].target in WHOLE and len(each.nodes) for each in alone] == [1]
