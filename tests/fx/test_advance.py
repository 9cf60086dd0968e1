"""What only the output needs is computed as soon as that takes no more memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from tests.fx.graphs import Spy, Stack
from zcompile.bridge.advance import advance
from zcompile.bridge.aliases import Aliases
from zcompile.bridge.capture import Captured

SIZE = (64, 64)


def advanced(function: Callable[..., Any], *managed: int) -> tuple[list[str], fx.GraphModule]:
    """Return the operations of ``function`` of two matrices in their new order, and the graph.

    ``managed`` are the numbers of the arguments that are parameters.
    """
    module = make_fx(function, tracing_mode="fake")(torch.randn(SIZE), torch.randn(SIZE))
    graph = module.graph
    placeholders = graph.find_nodes(op="placeholder")
    advance(graph, Aliases(graph), [placeholders[at] for at in managed])
    graph.lint()
    module.recompile()
    names = [str(node.target).split(".")[1] for node in graph.nodes if node.op == "call_function"]
    return names, module


def test_goes_behind_the_last_other_reader_of_what_it_uses_up() -> None:
    def late(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        root = x.exp()
        product = root @ y
        result = (product @ y).sin()
        return result, root / 3

    names, module = advanced(late)
    assert names == ["exp", "mm", "div", "mm", "sin"]
    x, y = torch.randn(SIZE), torch.randn(SIZE)
    assert all(map(torch.equal, module(x, y), late(x, y)))


def test_a_chain_moves_as_a_whole() -> None:
    def late(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        root = x.exp()
        result = ((root @ y) @ y).sin()
        return result, (root / 3).cos().t()

    assert advanced(late)[0] == ["exp", "mm", "div", "cos", "t", "mm", "sin"]


def test_views_go_right_behind_what_they_view_and_keep_an_order_that_works() -> None:
    def late(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        root = x.exp()
        result = ((root @ y) @ y).sin()
        return result, root.t(), root.t()[:5].unsqueeze(0)

    names, _ = advanced(late)
    assert names[0] == "exp"
    assert names[-3:] == ["mm", "mm", "sin"]


def larger(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The second result is larger than what it uses up."""
    root = x.exp()
    return (root @ y).exp(), root.repeat(4, 1)


def of_argument(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What the second result reads is an argument, so nothing ends with it."""
    return x.sin() @ y, x.cos()


def random(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    root = x.exp()
    return root @ y, torch.rand_like(root)


@pytest.mark.parametrize("late", [larger, of_argument, random])
def test_stays_where_moving_costs_memory_or_numbers(late: Callable[..., Any]) -> None:
    before = [
        str(node.target).split(".")[1]
        for node in make_fx(late, tracing_mode="fake")(
            torch.randn(SIZE), torch.randn(SIZE)
        ).graph.nodes
        if node.op == "call_function"
    ]
    assert advanced(late)[0] == before


def test_stays_if_it_leaves_itself_what_others_still_return() -> None:
    def late(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        root = x.exp()
        return ((root @ y) @ y).sin(), root, root / 3

    assert advanced(late)[0] == ["exp", "mm", "mm", "sin", "div"]


def test_stays_behind_what_changes_its_operand() -> None:
    def late(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        root = x.exp()
        result = (root @ y) @ y
        root.add_(1)
        return result, root / 3

    assert advanced(late)[0] == ["exp", "mm", "mm", "add_", "div"]


def test_what_reads_a_parameter_stays_with_its_view() -> None:
    def late(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        root = x.exp()
        return ((root @ root) @ root).sin(), root.cos() * y.t()

    names, _ = advanced(late, 1)
    assert names[-2:] == ["t", "mul"]


def forward_of(depth: int) -> Captured:
    torch.compiler.reset()
    spy = Spy(decompose=True)
    model = Stack(width=64, depth=depth)
    torch.compile(model, backend=spy)(torch.randint(50, (2, 64))).square().sum().backward()
    return spy.captured["forward"]


def test_the_last_segment_does_not_grow_with_depth() -> None:
    few, many = forward_of(3).segments[-1], forward_of(9).segments[-1]
    assert len(few.nodes) == len(many.nodes)
    assert len(few.inputs) == len(many.inputs)
