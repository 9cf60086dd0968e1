"""Small models captured the way the backend captures them, without planning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from zcompile.bridge import inductor, torch_private
from zcompile.bridge.capture import Captured, capture
from zcompile.bridge.roles import GraphInput, graph_inputs, roles_of


class Block(nn.Module):
    """A pre-norm residual MLP: two large matrices, two biases, a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(nn.functional.gelu(self.up(self.norm(x))))
        return x + y


class Stack(nn.Module):
    """An embedding, blocks, and a head tied to the embedding."""

    def __init__(self, width: int = 32, depth: int = 2, words: int = 50) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


class Spy:
    """A backend that captures each graph and runs it as it is."""

    def __init__(
        self,
        wrap: Callable[[Captured], Callable[[list[Any]], Any]] | None = None,
        *,
        decompose: bool = False,
    ) -> None:
        self.captured: dict[str, Captured] = {}
        self._wrap = wrap
        self._decompositions = inductor.decompositions() if decompose else None

    def __call__(self, module: fx.GraphModule, example_inputs: list[Any]) -> Any:
        owner = torch_private.compiled_object()
        inputs = graph_inputs(module, example_inputs, owner)
        return torch_private.aot_autograd(
            fw_compiler=self._compiler("forward", inputs),
            bw_compiler=self._compiler("backward", inputs),
            inference_compiler=self._compiler("inference", inputs),
            partition_fn=torch_private.min_cut_rematerialization_partition,
            decompositions=self._decompositions,
        )(module, example_inputs)

    def _compiler(self, kind: str, inputs: dict[int, GraphInput]) -> Any:
        def compile_graph(module: fx.GraphModule, _: list[Any]) -> Any:
            captured = capture(
                kind, module.graph, module, roles_of(module.graph, inputs), inline=True
            )
            self.captured[kind] = captured
            run = self._wrap(captured) if self._wrap else _boxed(module)
            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_graph


def _boxed(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    return lambda args: module(*args)


def captured_graphs(model: nn.Module, *inputs: Any) -> dict[str, Captured]:
    """Run one training step of ``model``; return its graphs by kind."""
    torch.compiler.reset()
    spy = Spy()
    torch.compile(model, backend=spy)(*inputs).square().sum().backward()
    return spy.captured
