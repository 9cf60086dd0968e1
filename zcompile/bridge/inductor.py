"""Compile each distinct segment once with Inductor.

In a transformer nearly all segments are structurally equal, so compile time hardly grows
with depth.  Two segments are equal if their operations, constants and layouts are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import fx, nn

from zcompile.bridge.segments import WHOLE, Segment, extract
from zcompile.bridge.torch_private import compile_inner, default_decompositions

BoxedCall = Callable[[list[Any]], Sequence[Any]]


def decompositions() -> dict[Any, Any]:
    """Return what AOTAutograd has to take apart for segments to be compiled."""
    return {op: rule for op, rule in default_decompositions().items() if op not in WHOLE}


class CompiledSegment(nn.Module):
    """A segment as Inductor made it; several segments may share one ``call``."""

    def __init__(self, call: BoxedCall) -> None:
        super().__init__()
        self._call = call

    def forward(self, *args: Any) -> Sequence[Any]:
        """Run the segment; ``args`` and the result are in the order of its boundary."""
        return self._call(list(args))


class SegmentCompiler:
    """The segments compiled so far for one session, by their structure."""

    def __init__(self) -> None:
        self._calls: dict[str, BoxedCall] = {}

    def compile(self, segments: Sequence[Segment], attributes: nn.Module) -> dict[str, nn.Module]:
        """Return a module for each of ``segments``, by name."""
        return {
            each.name: extract(each, attributes)
            if each.whole
            else CompiledSegment(self._call(each, attributes))
            for each in segments
        }

    def _call(self, segment: Segment, attributes: nn.Module) -> BoxedCall:
        module = extract(segment, attributes)
        key = structure(module.graph)
        if key not in self._calls:
            inputs = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
            self._calls[key] = compile_inner(module, inputs)
        return self._calls[key]


def structure(graph: fx.Graph) -> str:
    """Return a text that two graphs share exactly if one compiled kernel serves both."""
    position: dict[fx.Node, int] = {}
    lines: list[str] = []
    for node in graph.nodes:
        position[node] = len(position)
        args = fx.map_arg((node.args, node.kwargs), lambda each: f"%{position[each]}")
        own = "" if node.op in {"placeholder", "output"} else str(node.target)
        lines.append(f"{node.op} {own} {args!r} {_layout(node.meta.get('val'))}")
    return "\n".join(lines)


def _layout(value: object) -> str:
    if isinstance(value, tuple | list):
        parts = cast("Sequence[object]", value)
        return repr([_layout(each) for each in parts])
    if isinstance(value, torch.Tensor):
        return repr((tuple(value.shape), value.stride(), value.dtype, value.device))
    return repr(value)
