"""Schedule and captured graph in, FX graph out: the only writer of FX graphs.

The emitted module *is* the schedule: its ``code`` shows each fetch, wait, offload and
release between the segments, and running it carries the schedule out.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, assert_never

from torch import fx, nn
from torch.fx.graph import CodeGen
from torch.fx.node import Argument

from zcompile.bridge.again import Rewriter
from zcompile.bridge.capture import Captured, gradient_name
from zcompile.bridge.segments import Segment
from zcompile.ir import (
    Compute,
    Fetch,
    Offload,
    Release,
    Schedule,
    Step,
    Update,
    Wait,
    name_in_backward,
    name_in_forward,
)
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


@dataclass(frozen=True, slots=True)
class Emitted:
    """A schedule as a graph: ``forward(run, args)`` with ``run`` an executor.

    ``further`` names the arguments that it takes behind those of the captured graph: values,
    and sizes by their nodes, that only the segments of forward need.  ``dropped`` are the
    saved values that it does not hand out: in their place it has ``None``.
    """

    module: fx.GraphModule
    further: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forward:
    """The forward graph of a backward one; ``compiled`` as for `emit`."""

    captured: Captured
    compiled: Mapping[str, nn.Module] | None


def emit(
    captured: Captured,
    schedule: Schedule,
    compiled: Mapping[str, nn.Module] | None,
    forward: Forward | None = None,
    *,
    hands_out_all: bool = False,
) -> Emitted:
    """Write ``schedule`` as a graph.

    ``compiled`` gives a module for each segment; with ``None`` the operations of each
    segment stand in the graph themselves and run one by one.  ``forward`` is what kernels
    that run again come from.  With ``hands_out_all`` saved values that the schedule drops
    leave the graph nevertheless.
    """
    writer = _Writer(captured, schedule, compiled, forward, hands_out_all=hands_out_all)
    for step in schedule.steps:
        writer.step(step)
    return writer.finish()


class _Writer:
    """The graph under construction and, for each captured node, what stands for it now."""

    def __init__(
        self,
        captured: Captured,
        schedule: Schedule,
        compiled: Mapping[str, nn.Module] | None,
        forward: Forward | None,
        *,
        hands_out_all: bool,
    ) -> None:
        self.captured = captured
        self.compiled = compiled
        self.graph = fx.Graph()
        self.graph.set_codegen(BoxedCodeGen())
        self.run = self.graph.placeholder("run")
        self.segments = {each.name: each for each in captured.segments}
        self.env: dict[fx.Node, fx.Node] = {}
        self.new_homes: dict[str, fx.Node] = {}
        self.by_name: dict[str, fx.Node] = {}
        for node in captured.graph.find_nodes(op="placeholder"):
            self.env[node] = self.graph.placeholder(node.name)
            self.by_name[node.name] = node
        self.at_home = dict(self.env)
        self.movable = {name: node for node, name in captured.roles.movable.items()}
        self.made = {**captured.gradients, **captured.saved}
        self.fetched = {each.value for each in schedule.steps if isinstance(each, Fetch)}
        outputs = {*schedule.outputs, *(captured.saved if hands_out_all else ())}
        self.dropped = tuple(name for name in captured.saved if name not in outputs)
        self.further: dict[str, fx.Node] = {}
        self.arrived: dict[str, fx.Node] = {}
        self.again = None if forward is None else _Again(self, forward)

    def step(self, step: Step) -> None:
        match step:
            case Compute(kernel, _, writes, _, _, True):
                assert self.again is not None, f"{kernel} runs again, and there is no forward"
                self.again.run(kernel, writes)
            case Compute(kernel):
                self._compute(self.segments[kernel])
            case Fetch(ticket, value, src, offset):
                self._call(ops.fetch, value, ticket, value, src.value, offset)
            case Wait(ticket, value):
                self._arrive(value, self._call(ops.wait, value, ticket, value))
            case Offload(ticket, value, dst):
                tensor = self.env[self.made[value]]
                home = self._call(ops.offload, value, ticket, value, dst.value, tensor)
                self.new_homes[value] = home
            case Release(value, after):
                self._call(ops.release, value, value, after)
                if value in self.fetched:
                    self._arrive(value, None)
            case Update():
                raise AssertionError("a captured graph holds no update")
            case _:
                assert_never(step)

    def _arrive(self, value: str, copy: fx.Node | None) -> None:
        """Let ``copy`` stand for a value that was fetched, until it is released."""
        if value in self.movable and copy is not None:
            self.env[self.movable[value]] = copy
        elif value in self.movable:
            del self.env[self.movable[value]]
        elif copy is not None:
            self.arrived[value] = copy
        else:
            del self.arrived[value]

    def argument(self, name: str) -> fx.Node:
        """Return the node of a further argument: see ``Emitted``."""
        if name not in self.further:
            last = [node for node in self.graph.nodes if node.op == "placeholder"][-1]
            with self.graph.inserting_after(last):
                self.further[name] = self.graph.placeholder(f"further_{len(self.further)}")
        return self.further[name]

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

    def finish(self) -> Emitted:
        """Write the output: what was made over its new home, views of parameters over theirs."""
        self.env |= self.at_home
        for node in self.captured.epilogue:
            self.env[node] = self.graph.node_copy(node, self.env.__getitem__)
        self.graph.output(
            tuple(self._leaving(at, node) for at, node in enumerate(self.captured.output_nodes))
        )
        if self.again is not None:
            self.again.rewriter.drop_unused()
        self.graph.lint()
        module = fx.GraphModule(self._attributes(), self.graph, class_name="Schedule")
        return Emitted(module, tuple(self.further), self.dropped)

    def _leaving(self, at: int, node: object) -> Argument:
        roles = self.captured.roles
        parameter = roles.gradients.get(at)
        value = roles.leaving.get(at) if parameter is None else gradient_name(parameter)
        if value is not None and value in self.new_homes:
            return self.new_homes[value]
        if value in self.dropped:
            return None
        return self.env[node] if isinstance(node, fx.Node) else node  # type: ignore[return-value]

    def _attributes(self) -> dict[str, Any]:
        """Return what the graph refers to by name: constants, and compiled segments."""
        again = self.again.rewriter.attributes if self.again is not None else {}
        named = {str(node.target) for node in self.graph.find_nodes(op="get_attr")} - again.keys()
        found = {each: attrgetter(each)(self.captured.attributes) for each in sorted(named)}
        return found | dict(self.compiled or {}) | again


class _Again:
    """Writes the kernels of a backward graph that run again."""

    def __init__(self, writer: _Writer, forward: Forward) -> None:
        self._writer = writer
        self._captured = forward.captured
        self._compiled = forward.compiled
        self._segments = {each.name: each for each in forward.captured.segments}
        self._saved_as = {node: name for name, node in forward.captured.saved.items()}
        outputs = forward.captured.output_nodes
        self._handed = {outputs[at] for at in forward.captured.roles.leaving}
        self.rewriter = Rewriter(
            writer.graph,
            forward.captured.attributes,
            forward.captured.repeats.views,
            self._at_hand,
        )

    def run(self, kernel: str, writes: Sequence[str]) -> None:
        """Write ``kernel``, and let what it makes stand for the saved values among ``writes``."""
        segment = self._segments[name_in_forward(kernel)]
        compiled = None if self._compiled is None else self._compiled[segment.name]
        self.rewriter.run(segment, compiled)
        for name in writes:
            if name in self._captured.saved:
                placeholder = self._writer.movable[name]
                made = self.rewriter.node(self._captured.saved[name])
                self._writer.env[placeholder] = self._writer.at_home[placeholder] = made

    def _at_hand(self, node: fx.Node) -> fx.Node | None:
        """Return what stands in backward for a placeholder of forward, or for what it saves."""
        writer = self._writer
        if node.op != "placeholder":
            known = writer.movable.get(self._saved_as.get(node, "")) or writer.by_name.get(
                node.name
            )
            is_saved = node in self._handed
            return writer.env[known] if is_saved and known is not None else None
        managed = self._captured.roles.managed.get(node)
        if managed is not None and managed in writer.movable:
            return writer.env[writer.movable[managed]]
        if managed is not None:
            return writer.arrived.get(managed) or writer.argument(managed)
        if node.name in writer.by_name:
            return writer.env[writer.by_name[node.name]]
        return writer.argument(name_in_backward(self._captured.name, node.name))
