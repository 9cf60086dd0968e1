"""Schedule and captured graph in, FX graph out: the only writer of FX graphs.

The emitted module *is* the schedule: its ``code`` shows each fetch, wait, offload and
release between the segments, and running it carries the schedule out.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, assert_never

from torch import fx, nn
from torch.fx.graph import CodeGen
from torch.fx.node import Argument

from zcompile.bridge.capture import Captured, gradient_name
from zcompile.bridge.segments import Segment
from zcompile.ir import Compute, Fetch, Offload, Release, Schedule, Step, Update, Wait
from zcompile.runtime import ops


class BoxedCodeGen(CodeGen):
    """Generate ``forward(self, run, args)`` that empties the list ``args``.

    A caller that passed tensors one by one would keep each alive for the whole call; with
    a list that is emptied, a tensor dies at its last use.
    """

    def gen_fn_def(self, free_vars: list[str], *args: Any, **kwargs: Any) -> str:
        """Return the head of the function: take ``args`` apart, then clear it."""
        del args, kwargs
        names = [re.split(r"[:=]", each)[0].strip() for each in free_vars]
        given = ", ".join(name for name in names if name not in {"self", "run"})
        unpack = f"\n    [{given}] = args\n    args.clear()" if given else ""
        return f"def {self._func_name}(self, run, args):{unpack}"


def emit(
    captured: Captured, schedule: Schedule, compiled: Mapping[str, nn.Module] | None
) -> fx.GraphModule:
    """Write ``schedule`` as a graph: ``forward(run, args)`` with ``run`` an executor.

    ``compiled`` gives a module for each segment; with ``None`` the operations of each
    segment stand in the graph themselves and run one by one.
    """
    writer = _Writer(captured, schedule, compiled)
    for step in schedule.steps:
        writer.step(step)
    return writer.finish()


class _Writer:
    """The graph under construction and, for each captured node, what stands for it now."""

    def __init__(
        self, captured: Captured, schedule: Schedule, compiled: Mapping[str, nn.Module] | None
    ) -> None:
        self.captured = captured
        self.compiled = compiled
        self.graph = fx.Graph()
        self.graph.set_codegen(BoxedCodeGen())
        self.run = self.graph.placeholder("run")
        self.segments = {each.name: each for each in captured.segments}
        self.env: dict[fx.Node, fx.Node] = {}
        self.new_homes: dict[str, fx.Node] = {}
        for node in captured.graph.find_nodes(op="placeholder"):
            self.env[node] = self.graph.placeholder(node.name)
        self.at_home = dict(self.env)
        self.movable = {name: node for node, name in captured.roles.movable.items()}
        self.made = {**captured.gradients, **captured.saved}
        self.fetched = {each.value for each in schedule.steps if isinstance(each, Fetch)}

    def step(self, step: Step) -> None:
        match step:
            case Compute(kernel):
                self._compute(self.segments[kernel])
            case Fetch(ticket, value, src, offset):
                self._call(ops.fetch, value, ticket, value, src.value, offset)
            case Wait(ticket, value):
                self.env[self.movable[value]] = self._call(ops.wait, value, ticket, value)
            case Offload(ticket, value, dst):
                tensor = self.env[self.made[value]]
                home = self._call(ops.offload, value, ticket, value, dst.value, tensor)
                self.new_homes[value] = home
            case Release(value, after):
                self._call(ops.release, value, value, after)
                if value in self.fetched:
                    del self.env[self.movable[value]]
            case Update():
                raise AssertionError("a captured graph holds no update")
            case _:
                assert_never(step)

    def _call(self, function: Callable[..., object], value: str, *args: Argument) -> fx.Node:
        name = f"{function.__name__}_{value}"
        return self.graph.create_node("call_function", function, (self.run, *args), name=name)

    def _compute(self, segment: Segment) -> None:
        if self.compiled is None:
            for node in segment.nodes:
                self.env[node] = self.graph.node_copy(node, self.env.__getitem__)
            return
        given = tuple(self.env[node] for node in segment.inputs)
        result = self.graph.call_module(segment.name, given)
        for at, node in enumerate(segment.outputs):
            self.env[node] = self.graph.call_function(operator.getitem, (result, at))

    def finish(self) -> fx.GraphModule:
        """Write the output: what was made over its new home, views of parameters over theirs."""
        self.env |= self.at_home
        for node in self.captured.epilogue:
            self.env[node] = self.graph.node_copy(node, self.env.__getitem__)
        self.graph.output(
            tuple(self._leaving(at, node) for at, node in enumerate(self.captured.output_nodes))
        )
        self.graph.lint()
        return fx.GraphModule(self._attributes(), self.graph, class_name="Schedule")

    def _leaving(self, at: int, node: object) -> Argument:
        roles = self.captured.roles
        parameter = roles.gradients.get(at)
        value = roles.leaving.get(at) if parameter is None else gradient_name(parameter)
        if value is not None and value in self.new_homes:
            return self.new_homes[value]
        return self.env[node] if isinstance(node, fx.Node) else node  # type: ignore[return-value]

    def _attributes(self) -> dict[str, Any]:
        """Return what the graph refers to by name: constants, and compiled segments."""
        named = {str(node.target) for node in self.graph.find_nodes(op="get_attr")}
        found = {each: attrgetter(each)(self.captured.attributes) for each in sorted(named)}
        return found | dict(self.compiled or {})
