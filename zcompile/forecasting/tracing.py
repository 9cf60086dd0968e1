"""A step of training traced on fake tensors: the backend's own way, with nothing compiled."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from zcompile.bridge.capture import Captured, capture
from zcompile.bridge.lower import lower
from zcompile.bridge.partition import partition
from zcompile.bridge.roles import (
    GraphInput,
    graph_inputs,
    parameter_names,
    roles_of,
    saved_name,
)
from zcompile.bridge.segments import Totals
from zcompile.bridge.torch_private import isolated, mark_dynamic
from zcompile.collector import sparing_the_collector
from zcompile.forecasting.fakes import Fakes, empty_like


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a model is called with."""

    positional: tuple[Any, ...]
    named: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Traced:
    """One of AOTAutograd's graphs, and what its inputs are in the user's model."""

    name: str
    module: fx.GraphModule
    inputs: dict[int, GraphInput]

    def capture(
        self,
        *,
        inline: bool,
        saved: frozenset[str] = frozenset(),
        totals: Totals | None = None,
        all_saved: bool = False,
    ) -> Captured:
        """Return the graph as the backend captures it.

        ``saved`` are the names of what its forward may have moved, if it is a backward graph.
        ``totals`` and ``all_saved`` are as for `zcompile.bridge.capture.capture`.
        """
        number = self.name.rpartition(".")[2]

        def leaving(index: int) -> str:
            return saved_name(number, index)

        def coming(index: int) -> str | None:
            name = saved_name(number, index)
            return name if name in saved else None

        roles = roles_of(self.module.graph, self.inputs, leaving=leaving, coming=coming)
        module = self.module
        return capture(
            self.name,
            module.graph,
            module,
            roles,
            inline=inline,
            totals=totals,
            all_saved=all_saved,
        )


@dataclass(frozen=True, slots=True)
class Trace:
    """The graphs of one step in the order in which they came, and all parameters by name."""

    graphs: tuple[Traced, ...]
    parameters: tuple[str, ...]


class Recorder:
    """A backend that notes the graphs that it is given; calls of them answer with fakes."""

    def __init__(self, owner: nn.Module, mode: AbstractContextManager[Any], *, eager: bool) -> None:
        self._owner = owner
        self._mode = mode
        self._eager = eager
        self._numbers = count()
        self.graphs: dict[str, Traced] = {}
        self.parameters: dict[str, None] = {}

    def __call__(
        self, module: fx.GraphModule, example_inputs: Sequence[Any], **_: object
    ) -> Callable[..., Any]:
        inputs = graph_inputs(module, pytree.tree_leaves(list(example_inputs)), self._owner)
        self.parameters |= dict.fromkeys(parameter_names(inputs, self._owner) or ())
        number = next(self._numbers)

        def note(kind: str, graph: fx.GraphModule, _: Sequence[Any] = ()) -> _Answer:
            self.graphs[f"{kind}.{number}"] = Traced(f"{kind}.{number}", graph, inputs)
            return _Answer(graph, self._mode)

        def halve(
            joint: fx.GraphModule, joint_inputs: Any, **given: Any
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            halves = partition(joint, joint_inputs, **given)
            for kind, half in halves.items():
                note(kind, half)
            return halves["forward"], halves["backward"]

        return lower(module, example_inputs, eager=self._eager, compile_graph=note, partition=halve)


class _Answer:
    """Stands for a compiled graph: gives new fakes for what it would give."""

    def __init__(self, graph: fx.GraphModule, mode: AbstractContextManager[Any]) -> None:
        self._boxed_call = True
        (output,) = graph.graph.find_nodes(op="output")
        inputs = graph.graph.find_nodes(op="placeholder")
        self._positions = {node: at for at, node in enumerate(inputs)}
        self._outputs = [
            (each, each.meta.get("val") if isinstance(each, fx.Node) else each)
            for each in cast("Sequence[object]", output.args[0])
        ]
        self._mode = mode

    def __call__(self, args: list[Any]) -> list[object]:
        given = list(args)
        args.clear()
        return [
            given[self._positions[node]]
            if isinstance(node, fx.Node) and node in self._positions
            else empty_like(value, self._mode)
            for node, value in self._outputs
        ]


def trace(
    model: nn.Module,
    arguments: Arguments,
    *,
    eager: bool,
    shortened: Mapping[int, nn.Module] | None = None,
    symbolic: Sequence[tuple[int, int]] = (),
) -> Trace:
    """Return the graphs of one call of ``model`` and of the backward of what it returns.

    Nothing is allocated: ``model`` and ``arguments`` may lie on the meta device.  ``shortened``
    gives by the id of a module what takes its place.  ``symbolic`` names the axes that keep a
    symbol for their length, each by the number of its tensor among the arguments, and of itself.
    """
    fakes = Fakes()
    made = fakes.model(model, shortened or {})
    positional, named = fakes.inputs((arguments.positional, arguments.named))
    tensors = [t for t in pytree.tree_leaves((positional, named)) if isinstance(t, Tensor)]
    for at, axis in symbolic:
        mark_dynamic(tensors[at], axis)
    recorder = Recorder(made, fakes.mode, eager=eager)
    # A code object of our own: what Dynamo makes of it does not count for the user's model.
    call = types.FunctionType(_call.__code__.replace(), {"__builtins__": builtins})
    # Static but for the axes that are marked, whatever lengths Dynamo has met before.
    more: dict[str, Any] = {**isolated()}
    compiled: Any = torch.compile(call, backend=recorder, dynamic=False, **more)
    with fakes.mode, sparing_the_collector():
        _backward(compiled(made, positional, named))
    return Trace(tuple(recorder.graphs.values()), tuple(recorder.parameters))


def _call(model: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return model(*positional, **named)


def _backward(output: Any) -> None:
    """Go back from the loss in ``output``, or else from all of it that has a gradient."""
    loss = getattr(output, "loss", None)
    leaves = [loss] if isinstance(loss, Tensor) else _leaves(output)
    trained = [each for each in leaves if isinstance(each, Tensor) and each.requires_grad]
    if trained:
        torch.autograd.backward(trained, [torch.ones_like(each) for each in trained])


def _leaves(output: Any) -> list[Any]:
    if isinstance(output, Mapping):
        values: Iterable[Any] = cast("Any", output).values()
        return [leaf for each in values for leaf in _leaves(each)]
    return pytree.tree_leaves(output)
