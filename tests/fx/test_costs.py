"""What segments cost: flops as torch counts them while it runs, bytes by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.fx.graphs import Spy, Stack
from zcompile.bridge.capture import Captured
from zcompile.bridge.costs import segment_cost
from zcompile.ir import Kind, Operation


class Attention(nn.Module):
    """Causal self-attention between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.view(2, 5, 4, 4).transpose(1, 2) for y in self.into(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        z: Tensor = self.out(y.transpose(1, 2).reshape(2, 5, 16))
        return z


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten(), nn.Linear(128, 3)
    )


Make = Callable[[], tuple[nn.Module, Tensor]]
MODELS: dict[str, Make] = {
    "stack": lambda: (Stack(), torch.randint(50, (3, 4))),
    "convolutions": lambda: (convolutions(), torch.randn(2, 3, 8, 8)),
}


def captured(model: nn.Module, x: Tensor) -> dict[str, Captured]:
    spy = Spy()
    torch.compile(model, backend=spy)(x).sum().backward()
    return spy.captured


def operations(graphs: Iterable[Captured]) -> list[Operation]:
    return [each for graph in graphs for cost in graph.costs.values() for each in cost]


@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_that_run(name: str) -> None:
    model, x = MODELS[name]()
    counter = FlopCounterMode(display=False)
    with counter:
        model(x).sum().backward()
    found = operations(captured(model, x).values())
    assert sum(each.flops for each in found) == counter.get_total_flops() > 0
    assert all(each.kind is not None for each in found)


class Constant(nn.Module):
    """Adds a tensor that is made inside: its graph refers to it by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) + torch.tensor([1.0, 2.0, 3.0, 4.0], device="cpu")
        return y


def test_a_constant_costs_nothing_and_is_no_unknown() -> None:
    graphs = captured(Constant(), torch.randn(2, 4))
    nodes = [node for graph in graphs.values() for node in graph.graph.nodes]
    assert any(node.op == "get_attr" for node in nodes)
    found = operations(graphs.values())
    assert found
    assert all(each.kind is not None for each in found)


def test_attention_on_a_cpu_is_two_products_forward_and_five_backward() -> None:
    found = operations(captured(Attention(), torch.randn(2, 5, 16)).values())
    product = 2 * (2 * 4 * 5 * 4) * 5  # batch, heads, queries, width; keys
    flops = [each.flops for each in found if each.kind is Kind.ATTENTION]
    assert sorted(flops) == [2 * product, 5 * product]


def test_bytes_are_those_of_the_tensors_read_and_written() -> None:
    graphs = captured(nn.Sequential(nn.Linear(8, 4), nn.Tanh()), torch.randn(2, 8))
    (cost,) = graphs["forward"].costs.values()
    product, stream = cost
    assert product == Operation(
        "aten.addmm.default", Kind.MATMUL, "float32", 2 * 2 * 8 * 4, 4 * (16 + 32 + 4 + 8)
    )
    assert stream == Operation("stream", Kind.STREAM, "float32", 0, 4 * (8 + 8), 1)


def test_what_is_compiled_passes_tensors_on_for_nothing() -> None:
    spy = Spy()
    torch.compile(nn.Sequential(nn.GELU(), nn.GELU()), backend=spy)(torch.randn(8))
    graph = spy.captured["inference"]
    # Node by node two operations read and write 32 bytes each; one loop reads and writes once.
    assert graph.costs["seg_0"] == (Operation("stream", Kind.STREAM, "float32", 0, 128, 2),)
    (segment,) = graph.segments
    assert segment_cost(segment, graph.aliases, fused=True) == (
        Operation("stream", Kind.STREAM, "float32", 0, 64, 1),
    )


def test_an_operation_of_somebody_else_is_unknown() -> None:
    @torch.library.custom_op("zinf_tests::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)

    class Foreign(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = twice(x)
            return y

    spy = Spy()
    with torch.no_grad():
        torch.compile(Foreign(), backend=spy)(torch.randn(8))
    (found,) = operations(spy.captured.values())
    assert (found.kind, found.name) == (None, "zinf_tests.twice.default")
