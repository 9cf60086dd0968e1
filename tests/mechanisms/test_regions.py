"""Regions that Dynamo keeps apart: they are part of the graph that is planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from tests.e2e.sides import Compile, check_same, copies
from zcompile.bridge.regions import inline_regions

WIDTH, DEPTH = 32, 4

_COMPILER: Any = torch.compiler

SCALE = torch.linspace(0.5, 1.5, WIDTH)


@_COMPILER.nested_compile_region  # type: ignore[untyped-decorator]  # torch's
def scaled(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) * SCALE


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    @_COMPILER.nested_compile_region  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor) -> tuple[Any, list[Tensor]]:
        return scaled(self.linear(x)), [x * 2]


class Model(nn.Module):
    """Equal layers, each a region that has a region and a condition in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y, (twice,) = layer(x)
            x = x + y * twice
        return x


def test_no_region_is_left_and_the_graph_does_the_same() -> None:
    seen: list[fx.GraphModule] = []

    def as_it_is(module: fx.GraphModule, _: object) -> Any:
        seen.append(module)
        return module

    def inlined(module: fx.GraphModule, _: object) -> Any:
        inline_regions(module)
        module.graph.lint()
        seen.append(module)
        return module

    model, x = Model(), torch.randn(3, WIDTH)
    want, got = (torch.compile(model, backend=backend)(x) for backend in (as_it_is, inlined))
    assert torch.equal(got, want)
    before, after = seen
    assert "invoke_subgraph" in before.code
    assert "invoke_subgraph" not in after.code
    names = [[node.name for node in each.graph.find_nodes(op="placeholder")] for each in seen]
    assert names[0] == names[1]


# Plain torch.cond looks at it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_model_of_regions_has_the_bits_of_plain_pytorch(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        torch.manual_seed(0)
        model = Model()
        call, optimizer = compile_model(model), torch.optim.AdamW(model.parameters(), lr=1e-2)
        seen: list[Tensor] = []
        for seed in range(3):
            optimizer.zero_grad()
            x = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed))
            loss = call(x).square().mean()
            loss.backward()
            optimizer.step()
            seen += copies(model, loss)
        return seen

    (session,) = check_same(script, swap_dir)
    kernels = [len(each.schedule.steps) for each in session.planned()]
    assert min(kernels) > DEPTH, "each layer is planned for itself"
