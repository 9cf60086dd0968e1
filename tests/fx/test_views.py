"""Views of parameters are taken anew for each reader, right before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.fx.graphs import captured_graphs
from zcompile.bridge.capture import Captured


class Twice(nn.Module):
    """Reads one view of a weight in two places, with a product by another weight between."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Parameter(torch.randn(8, 8))
        self.other = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        turned = self.tied.t()
        return ((x @ turned) @ self.other) @ turned


def views_of_parameters(captured: Captured) -> list[tuple[str, list[str]]]:
    own = {each for node in captured.roles.managed for each in captured.aliases.of(node)}
    return [
        (node.name, [user.name for user in node.users])
        for node in captured.graph.nodes
        if captured.aliases.is_view_of(node, own)
    ]


def test_each_view_has_one_reader() -> None:
    for captured in captured_graphs(Twice(), torch.randn(2, 8)).values():
        assert all(len(users) == 1 for _, users in views_of_parameters(captured))


def test_a_view_and_its_reader_are_in_one_segment() -> None:
    for captured in captured_graphs(Twice(), torch.randn(2, 8)).values():
        segment_of = {n.name: each.name for each in captured.segments for n in each.nodes}
        for name, (reader,) in views_of_parameters(captured):
            assert reader == "output" or segment_of[name] == segment_of[reader]


def test_no_view_of_a_parameter_crosses_a_cut() -> None:
    for captured in captured_graphs(Twice(), torch.randn(2, 8)).values():
        views = {name for name, _ in views_of_parameters(captured)}
        assert not views & {node.name for each in captured.segments for node in each.inputs}


def test_a_view_that_leaves_the_graph_belongs_to_no_segment() -> None:
    class Shown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x @ self.weight, self.weight.t()

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shown = Shown()

        def forward(self, x: Tensor) -> Tensor:
            product, weight = self.shown(x)
            loss: Tensor = product.sum() + weight[0].sum()
            return loss

    torch.compiler.reset()
    captured = captured_graphs(Loss(), torch.randn(2, 8))["forward"]
    assert "shown.weight" not in captured.schedule(int).outputs
