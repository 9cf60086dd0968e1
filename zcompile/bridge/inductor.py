"""Compile each distinct segment once with Inductor.

In a transformer nearly all segments are structurally equal, so compile time hardly grows
with depth.  Two segments are equal if their operations, constants and layouts are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from zcompile.bridge.segments import WHOLE, Segment, extract
from zcompile.bridge.torch_private import compile_inner, content, default_decompositions

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
        self._known = Constants()

    def __len__(self) -> int:
        """Return how many distinct segments have been compiled."""
        return len(self._calls)

    def compile(self, segments: Sequence[Segment], attributes: nn.Module) -> dict[str, nn.Module]:
        """Return a module for each of ``segments``, by name."""
        return {
            each.name: extract(each, attributes)
            if each.whole
            else CompiledSegment(self._call(each, attributes))
            for each in segments
        }

    def _call(self, segment: Segment, attributes: nn.Module) -> BoxedCall:
        key = structure(segment, self._known.names(attributes))
        if key not in self._calls:
            inputs = [node.meta.get("val") for node in segment.inputs]
            self._calls[key] = compile_inner(extract(segment, attributes), inputs)
        return self._calls[key]


class Constants:
    """Names for what graphs refer to by an attribute: equal tensors share one, modules do not.

    Compiled code contains the constants of its segment, and other graphs call other tensors
    by the same attribute.
    """

    def __init__(self) -> None:
        self._kept: dict[int, object] = {}

    def names(self, attributes: nn.Module) -> Callable[[str], str]:
        """Return what names an attribute of ``attributes``."""
        return lambda target: self._name(attrgetter(target)(attributes))

    def _name(self, constant: object) -> str:
        if type(constant) is Tensor and constant.layout is torch.strided:
            return f"{sha256(content(constant)).hexdigest()} {_layout(constant)}"
        self._kept[id(constant)] = constant  # so that no other gets its number
        return str(id(constant))


def structure(segment: Segment, name: Callable[[str], str]) -> str:
    """Return a text that two segments share exactly if one compiled kernel serves both.

    ``name`` says which constant an attribute is.
    """
    position: dict[fx.Node, int] = {}
    lines: list[str] = []
    for node in segment.inputs:
        position[node] = len(position)
        lines.append(_layout(node.meta.get("val")))
    for node in segment.nodes:
        position[node] = len(position)
        args = fx.map_arg((node.args, node.kwargs), lambda each: f"%{position[each]}")
        own = name(node.target) if isinstance(node.target, str) else str(node.target)
        lines.append(f"{node.op} {own} {args!r} {_layout(node.meta.get('val'))}")
    lines.append(repr([position[node] for node in segment.outputs]))
    return "\n".join(lines)


def _layout(value: object) -> str:
    if isinstance(value, tuple | list):
        parts = cast("Sequence[object]", value)
        return repr([_layout(each) for each in parts])
    if isinstance(value, Tensor) and value.layout is torch.strided:
        sizes = tuple(value.shape), value.stride(), value.storage_offset()
        return repr((*sizes, value.dtype, value.device))
    if isinstance(value, Tensor):
        return repr((tuple(value.shape), value.layout, value.dtype, value.device))
    return repr(value)
