"""Which nodes of a graph share memory: liveness and residency belong to storages."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, fx

from zcompile.bridge.torch_private import storage_key

Size = int | torch.SymInt


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """One piece of memory that a graph touches; ``root`` is the node that brings it about.

    Two are the same only if they are the same object: a symbolic size cannot be hashed.
    """

    root: fx.Node
    nbytes: Size


def tensors_of(node: fx.Node) -> Iterator[Tensor]:
    """Yield the fake tensors that ``node`` stands for: one, several, or none."""
    value = node.meta.get("val")
    is_several = isinstance(value, tuple | list)
    for each in cast("Sequence[object]", value) if is_several else (value,):
        if isinstance(each, Tensor):
            yield each


class Aliases:
    """The storages of a graph and which of them each node's tensors lie in."""

    def __init__(self, graph: fx.Graph) -> None:
        self._by_key: dict[int, Storage] = {}
        self._of: dict[fx.Node, tuple[Storage, ...]] = {}
        for node in graph.nodes:
            if node.op != "output":
                self._of[node] = self._storages(node)

    def _storages(self, node: fx.Node) -> tuple[Storage, ...]:
        if node.target is operator.getitem:
            source, index = node.args
            if isinstance(source, fx.Node) and isinstance(source.meta.get("val"), tuple | list):
                # The element of what was unpacked: the item's own fake may be another one.
                element = source.meta["val"][index]
                return (self._enter(source, element),) if isinstance(element, Tensor) else ()
        return tuple(self._enter(node, each) for each in tensors_of(node))

    def _enter(self, node: fx.Node, tensor: Tensor) -> Storage:
        if tensor.layout is not torch.strided:
            return Storage(node, 0)
        key = storage_key(tensor)
        if key not in self._by_key:
            self._by_key[key] = Storage(node, tensor.untyped_storage().nbytes())
        return self._by_key[key]

    def of(self, node: fx.Node) -> tuple[Storage, ...]:
        """Return the storages under ``node``; empty for numbers and for ``None``."""
        return self._of.get(node, ())

    def read_by(self, node: fx.Node) -> tuple[Storage, ...]:
        """Return the storages under the arguments of ``node``, each once."""
        found = (each for source in node.all_input_nodes for each in self.of(source))
        return tuple(dict.fromkeys(found))

    def is_view_of(self, node: fx.Node, storages: Collection[Storage]) -> bool:
        """Whether ``node`` is an operation all of whose tensors lie in ``storages``."""
        own = self.of(node)
        return node.op == "call_function" and bool(own) and all(each in storages for each in own)
