"""Emission without moves: the emitted module is the captured graph again."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.fx.graphs import Block, Spy, Stack
from zcompile.bridge.capture import Captured
from zcompile.bridge.emit import emit
from zcompile.bridge.inductor import SegmentCompiler, structure
from zcompile.bridge.segments import extract
from zcompile.bridge.sizes import hint


def inline(captured: Captured) -> Any:
    module = emit(captured, captured.schedule(hint), None).module
    return partial(module, None)


def segmented(captured: Captured) -> Any:
    segments = {each.name: extract(each, captured.attributes) for each in captured.segments}
    module = emit(captured, captured.schedule(hint), segments).module
    return partial(module, None)


def compiled(captured: Captured) -> Any:
    segments = SegmentCompiler().compile(captured.segments, captured.attributes)
    module = emit(captured, captured.schedule(hint), segments).module
    return partial(module, None)


def step(model: nn.Module, *inputs: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss = model(*inputs).square().mean()
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [loss.detach(), *gradients]


@pytest.mark.parametrize("wrap", [inline, segmented])
@pytest.mark.parametrize(
    ("model", "inputs"),
    [(Block(32), (torch.randn(4, 32),)), (Stack(), (torch.arange(10).view(2, 5),))],
    ids=["block", "stack"],
)
def test_emitted_graphs_give_the_bits_of_eager(wrap: Any, model: nn.Module, inputs: Any) -> None:
    torch.compiler.reset()
    want = step(copy.deepcopy(model), *inputs)
    got = step(torch.compile(model, backend=Spy(wrap)), *inputs)  # type: ignore[arg-type]
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_inductor_segments_agree_with_eager() -> None:
    torch.compiler.reset()
    model, words = Stack(), torch.arange(10).view(2, 5)
    want = step(copy.deepcopy(model), words)
    got = step(torch.compile(model, backend=Spy(compiled, decompose=True)), words)  # type: ignore[arg-type]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def distinct_segments(depth: int) -> dict[str, int]:
    torch.compiler.reset()
    spy = Spy()
    torch.compile(Stack(depth=depth), backend=spy)(torch.arange(10).view(2, 5)).sum().backward()
    return {
        kind: len({structure(each, str) for each in captured.segments})
        for kind, captured in spy.captured.items()
    }


def test_the_number_of_distinct_segments_does_not_grow_with_depth() -> None:
    assert distinct_segments(4) == distinct_segments(6)


def test_arguments_die_at_their_last_use() -> None:
    torch.compiler.reset()
    spy = Spy(inline)
    torch.compile(Block(32), backend=spy)(torch.randn(4, 32)).sum().backward()
    backward = spy.captured["backward"]
    code = emit(backward, backward.schedule(hint), None).module.code
    assert "args.clear()" in code
    assert "tangents_1 = None" in code
