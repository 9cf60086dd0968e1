"""Sizes that depend on the shapes of a call: from symbols to numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from zcompile.bridge.aliases import Size, tensors_of

Bindings = tuple[tuple[sympy.Symbol, int], ...]
"""The value of each symbol of a graph in one call, sorted by symbol; empty when all is static."""


class UnknownSize(ValueError):
    """A size that only the data of a call decides, so that no plan can count on it."""


def hint(size: Size) -> int:
    """Return ``size`` for the shapes that the graph was captured with."""
    if isinstance(size, int):
        return size
    if not size.node.has_hint():
        raise UnknownSize(f"the size {size} is known only when the graph has run")
    return int(size.node.hint)  # type: ignore[arg-type]


def evaluate(size: Size, bindings: Mapping[sympy.Symbol, int]) -> int:
    """Return ``size`` with every symbol replaced by its value in ``bindings``."""
    if isinstance(size, int):
        return size
    value = sympy.sympify(size.node.expr).subs(dict(bindings))
    if not value.is_number:
        raise UnknownSize(f"the size {size} is known only when the graph has run")
    return int(value)


class SymbolReader:
    """Reads the symbols of a graph off the arguments of a call."""

    def __init__(self, graph: fx.Graph) -> None:
        self._numbers: dict[sympy.Symbol, int] = {}
        self._shapes: dict[sympy.Symbol, tuple[int, int]] = {}
        for at, node in enumerate(graph.find_nodes(op="placeholder")):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
                self._numbers.setdefault(value.node.expr, at)
            for tensor in tensors_of(node):
                for axis, length in enumerate(tensor.shape):
                    if isinstance(length, torch.SymInt) and isinstance(
                        length.node.expr, sympy.Symbol
                    ):
                        self._shapes.setdefault(length.node.expr, (at, axis))

    def read(self, args: Sequence[Any]) -> Bindings:
        """Return the value of every symbol for ``args``, the arguments in graph order."""
        found = {symbol: _length(args[at], axis) for symbol, (at, axis) in self._shapes.items()}
        found |= {symbol: int(args[at]) for symbol, at in self._numbers.items()}
        return tuple(sorted(found.items(), key=lambda each: each[0].name))


def _length(tensor: Tensor, axis: int) -> int:
    return int(tensor.shape[axis])
