"""What each segment of a captured graph costs, read off its fake tensors.

Flops come from torch's own formulas.  Bytes are those of the tensors that an operation reads
and writes.  Where a segment is compiled, operations that only stream through memory become one
loop, so what they pass to one another inside the segment costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from zcompile.bridge.aliases import Aliases, Size, tensors_of
from zcompile.bridge.segments import Segment
from zcompile.bridge.sizes import UnknownSize, hint
from zcompile.bridge.torch_private import flop_formula
from zcompile.ir import Kind
from zcompile.ir.cost import Cost, Operation

SizeOf = Callable[[Size], int]
"""From a size that may be symbolic to a number."""

_KINDS = {"conv": Kind.CONVOLUTION, "attention": Kind.ATTENTION, "mm": Kind.MATMUL}
"""Parts of the names of operations that have flops to count, and what bounds those."""

_OWN_NAMESPACES = frozenset({"aten", "prims"})

_ATTENTION_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def segment_cost(
    segment: Segment, aliases: Aliases, *, fused: bool, size_of: SizeOf = hint
) -> Cost:
    """Return the operations of ``segment`` for the shapes that ``size_of`` knows.

    By default those are the shapes that it was captured with.  All that only stream through
    memory are counted together.  ``fused`` says that they will be compiled into loops.
    """
    reader = _Reader(segment, aliases, fused, size_of)
    counted: list[Operation] = []
    streams: dict[str, _Stream] = {}
    for node in segment.nodes:
        try:
            found = reader.operation(node)
        except UnknownSize:
            found = Operation(_name(node), None, "", 0, 0)
        if found is not None and found.kind is Kind.STREAM:
            streams.setdefault(found.dtype, _Stream()).add(found.nbytes)
        elif found is not None:
            counted.append(found)
    for dtype, stream in streams.items():
        count = 1 if fused else stream.count
        counted.append(Operation("stream", Kind.STREAM, dtype, 0, stream.nbytes, count))
    return tuple(counted)


@dataclass(slots=True)
class _Stream:
    nbytes: int = 0
    count: int = 0

    def add(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self.count += 1


class _Reader:
    def __init__(self, segment: Segment, aliases: Aliases, fused: bool, size_of: SizeOf) -> None:
        self._aliases = aliases
        self._size_of = size_of
        self._inside = set(segment.nodes)
        self._leaving = set(segment.outputs)
        self._fused = fused

    def operation(self, node: fx.Node) -> Operation | None:
        """Return what ``node`` does; nothing for a view and for what makes no tensor.

        A constant that the graph refers to by name is there already.
        """
        tensors = list(tensors_of(node))
        if node.op != "call_function" or not tensors or not self._works(node):
            return None
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        if getattr(node.target, "namespace", None) not in _OWN_NAMESPACES:
            return Operation(_name(node), None, dtype, 0, 0)
        flops = self._flops(node)
        if flops is None:
            return Operation(_name(node), Kind.STREAM, dtype, 0, self._streamed_bytes(node))
        kind = next(kind for part, kind in _KINDS.items() if part in _name(node))
        nbytes = self._read_bytes(node) + self._bytes(tensors)
        return Operation(_name(node), kind, dtype, flops, nbytes)

    def _works(self, node: fx.Node) -> bool:
        """Whether ``node`` makes or changes memory: a view and an unpacking do not."""
        own = self._aliases.of(node)
        is_new = any(storage.root is node for storage in own)
        schema = getattr(node.target, "_schema", None)
        return is_new or not own or (schema is not None and schema.is_mutable)

    def _streamed_bytes(self, node: fx.Node) -> int:
        written = self._bytes(list(tensors_of(node)))
        if not self._fused:
            return written + self._read_bytes(node)
        kept = node in self._leaving or not all(_is_stream(user) for user in node.users)
        sources = [each for each in node.all_input_nodes if not self._is_fused_source(each)]
        read = self._bytes([t for each in sources for t in tensors_of(each)])
        return (written if kept else 0) + read

    def _is_fused_source(self, node: fx.Node) -> bool:
        return node in self._inside and _is_stream(node)

    def _flops(self, node: fx.Node) -> int | None:
        formula = _formula(node)
        if formula is None:
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
        return self._size_of(formula(*args, **kwargs, out_val=node.meta["val"]))

    def _read_bytes(self, node: fx.Node) -> int:
        return self._bytes([tensor for each in node.all_input_nodes for tensor in tensors_of(each)])

    def _bytes(self, tensors: Collection[Tensor]) -> int:
        return sum(self._size_of(each.numel() * each.element_size()) for each in tensors)


def _is_stream(node: fx.Node) -> bool:
    return node.op == "call_function" and _formula(node) is None


def _formula(node: fx.Node) -> Callable[..., Any] | None:
    own: dict[object, Callable[..., Any]] = {
        _ATTENTION_FORWARD: _attention_flops,
        _ATTENTION_BACKWARD: _attention_backward_flops,
    }
    return own.get(node.target) or flop_formula(node.target)


def _attention_flops(query: Tensor, key: Tensor, *_: object, **__: object) -> Any:
    """Two products of matrices: scores, and their sums of values."""
    return 2 * 2 * prod(query.shape) * key.shape[-2]


def _attention_backward_flops(
    _gradient: Tensor, query: Tensor, key: Tensor, *_: object, **__: object
) -> Any:
    """Five products of matrices: scores again, and the gradients of them and of the inputs."""
    return 5 * 2 * prod(query.shape) * key.shape[-2]


def _name(node: fx.Node) -> str:
    return str(node.target)
