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
from zcompile.bridge.inductor import CompiledSegment, Constants, SegmentCompiler, structure
from zcompile.bridge.segments import WHOLE, extract
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
    segments = SegmentCompiler().compile(captured.segments, captured.attributes)
    for each in captured.segments:
        assert each.whole != isinstance(segments[each.name], CompiledSegment)
    module = emit(captured, captured.schedule(hint), segments).module
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


class Scaled(nn.Module):
    """A layer times constants that tracing gives the same name in every graph."""

    def __init__(self, factors: list[float]) -> None:
        super().__init__()
        self.factors = factors
        self.layer = nn.Linear(len(factors), len(factors))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) * torch.tensor(self.factors)
        return result


@pytest.mark.parametrize("count", [4, 40], ids=["written into the code", "beside it"])
def test_graphs_with_other_constants_share_no_kernel(count: int) -> None:
    compiler = SegmentCompiler()

    def with_one_compiler(captured: Captured) -> Any:
        segments = compiler.compile(captured.segments, captured.attributes)
        return partial(emit(captured, captured.schedule(hint), segments).module, None)

    x = torch.randn(2, count)
    for factor in (2.0, 3.0):
        torch.compiler.reset()
        model = Scaled([factor] * count)
        call: Any = torch.compile(model, backend=Spy(with_one_compiler, decompose=True))  # pyright: ignore[reportArgumentType]
        torch.testing.assert_close(call(x), model(x))


def test_constants_are_told_apart_by_what_they_hold() -> None:
    known = Constants()
    root = nn.Module()
    root.one, root.same, root.other = (torch.full((3,), each) for each in (1.0, 1.0, 2.0))
    root.whole = torch.full((3,), 1)
    names = [known.names(root)(each) for each in ("one", "same", "other", "whole")]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_equal_segments_have_the_same_code() -> None:
    torch.compiler.reset()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    spy = Spy(decompose=True)
    call: Any = torch.compile(model, backend=spy)  # pyright: ignore[reportArgumentType]
    call(torch.randn(2, 8)).sum().backward()
    for captured in spy.captured.values():
        codes: dict[str, set[str]] = {}
        for each in captured.segments:
            code = extract(each, captured.attributes).code
            codes.setdefault(structure(each, str), set()).add(code)
        assert len(codes) < len(captured.segments)
        assert all(len(each) == 1 for each in codes.values())
