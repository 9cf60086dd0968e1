"""Reads the symbols of a graph off the arguments of a call.

Most are an argument, or the length of one.  Others are found in an expression, of a length, a
stride or an offset.  Those that are in no argument do not depend on the call, such as the size of
the state of a random generator.

Note [What is behind a view].  Where an argument is a view, the bytes that it is a view of may have
symbols of their own, which nothing else has and no guard holds: in another call they need not even
have the form that they had in the first.  So these symbols take any values for which the bytes are
no fewer than they are.  They begin as ones and only grow: what serves one argument still does
when another, which has the same symbols, needs more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch import Tensor, fx

from zcompile.bridge.aliases import Size, tensors_of
from zcompile.bridge.sizes import Bindings, expression_of, hint, is_known, symbol_of

Known = Mapping[sympy.Symbol, int]


class SymbolReader:
    """Reads the symbols of ``graph``.

    Of the placeholders ``stand_ins`` a call may bring other tensors, of other shapes.
    """

    def __init__(self, graph: fx.Graph, stand_ins: Collection[fx.Node] = ()) -> None:
        self._numbers: dict[sympy.Symbol, int] = {}
        self._shapes: dict[sympy.Symbol, tuple[int, int]] = {}
        facts: list[_Fact] = []
        storages: list[_Fact] = []
        for at, node in enumerate(graph.find_nodes(op="placeholder")):
            symbol = symbol_of(node.meta.get("val"))
            if symbol is not None:
                self._numbers.setdefault(symbol, at)
            if node in stand_ins:
                continue
            for tensor in tensors_of(node):
                for axis, length in enumerate(tensor.shape):
                    symbol = symbol_of(length)
                    if symbol is not None:
                        self._shapes.setdefault(symbol, (at, axis))
            facts += _facts(at, node)
            storages += _storages(at, node)
        known = {*self._numbers, *self._shapes}
        self._solved = _solvable(facts, known)
        known |= dict(self._solved).keys()
        behind = [(each, _to_enlarge(each, known)) for each in storages]
        self._behind = [(each, symbol) for each, symbol in behind if symbol is not None]
        self._free = {s for each, _ in self._behind for s in each.symbols - known}
        given = {symbol for each in (*facts, *storages) for symbol in each.symbols}
        self._fixed = {s: each for s, each in _hints(graph).items() if s not in given}

    def read(self, args: Sequence[Any]) -> Bindings:
        """Return the value of every symbol for ``args``, the arguments in graph order.

        The ragged length of a nested tensor has none: it is no number, and in no size of memory.
        """
        found = {symbol: _length(args[at], axis) for symbol, (at, axis) in self._shapes.items()}
        numbers = {symbol: args[at] for symbol, at in self._numbers.items()}
        found |= {symbol: each for symbol, each in numbers.items() if isinstance(each, int)}
        found |= self._fixed
        for symbol, fact in self._solved:
            found[symbol] = fact.solve(symbol, args, found)
        found |= dict.fromkeys(self._free, 1)  # Note [What is behind a view]
        for fact, symbol in self._behind:
            found[symbol] = max(found[symbol], fact.solve(symbol, args, found))
        return tuple(sorted(found.items(), key=lambda each: each[0].name))


@dataclass(frozen=True, slots=True)
class _Fact:
    """A number that ``read`` finds in argument ``at`` of a call, and what it is in symbols."""

    at: int
    expression: Any
    read: Callable[[Any], int]

    @property
    def symbols(self) -> set[sympy.Symbol]:
        found: set[sympy.Symbol] = self.expression.free_symbols
        return found

    def grows_with(self, symbol: sympy.Symbol) -> bool:
        """Whether this is a positive multiple of ``symbol``, and something without it."""
        expanded = _expanded(self.expression)
        slope = expanded.coeff(symbol)
        rest = _expanded(expanded - slope * symbol)
        return bool(slope.is_positive) and symbol not in rest.free_symbols

    def solve(self, symbol: sympy.Symbol, args: Sequence[Any], known: Known) -> int:
        """Return the value of ``symbol``; where it is no whole number, the next larger one."""
        others = {each: value for each, value in known.items() if each != symbol}
        expanded = _expanded(self.expression.subs(others))
        rest, slope = int(expanded.subs(symbol, 0)), int(expanded.coeff(symbol))
        return -((rest - self.read(args[self.at])) // slope)


def _facts(at: int, node: fx.Node) -> Iterable[_Fact]:
    """Yield what can be read off argument ``at``, which ``node`` stands for."""
    if isinstance(number := node.meta.get("val"), torch.SymInt):
        yield _Fact(at, expression_of(number), int)
    for tensor in _only_tensor(node):
        for axis, length in enumerate(tensor.shape):
            yield _Fact(at, expression_of(length), partial(_length, axis=axis))
        for axis, stride in enumerate(tensor.stride()):
            yield _Fact(at, expression_of(stride), partial(_stride, axis=axis))
        yield _Fact(at, expression_of(tensor.storage_offset()), _offset)


def _storages(at: int, node: fx.Node) -> Iterable[_Fact]:
    """Yield the bytes of what argument ``at``, which ``node`` stands for, is a view of."""
    for tensor in _only_tensor(node):
        yield _Fact(at, expression_of(tensor.untyped_storage().nbytes()), _storage_bytes)


def _only_tensor(node: fx.Node) -> list[Tensor]:
    """Return what ``node`` stands for, if that is one tensor of the common layout."""
    tensors = [each for each in tensors_of(node) if each.layout is torch.strided]
    return tensors if len(tensors) == 1 else []


def _hints(graph: fx.Graph) -> dict[sympy.Symbol, int]:
    """Return the lengths that were symbols when the operations of ``graph`` were traced."""
    lengths: Iterable[Size] = (
        length for node in graph.nodes for tensor in tensors_of(node) for length in tensor.shape
    )
    symbols = ((symbol_of(length), length) for length in lengths)
    return {s: hint(length) for s, length in symbols if s is not None and is_known(length)}


def _solvable(
    facts: Iterable[_Fact], known: Collection[sympy.Symbol]
) -> tuple[tuple[sympy.Symbol, _Fact], ...]:
    """Return the further symbols that ``facts`` give, each after those that it depends on."""
    found: dict[sympy.Symbol, _Fact] = {}
    left = [each for each in facts if each.symbols]
    while True:
        before = len(found)
        for fact in left:
            unknown = [each for each in fact.symbols if each not in known and each not in found]
            if len(unknown) == 1 and fact.grows_with(unknown[0]):
                found[unknown[0]] = fact
        if len(found) == before:
            return tuple(found.items())


def _to_enlarge(fact: _Fact, known: Collection[sympy.Symbol]) -> sympy.Symbol | None:
    """Return the symbol that makes ``fact`` as large as need be, if none that is known decides.

    One whose multiple stays positive while the others are ones, and whatever they grow to.
    """
    free = sorted(fact.symbols - set(known), key=str)
    return next((each for each in free if fact.grows_with(each)), None)


def _expanded(expression: Any) -> Any:
    expand = cast("Callable[[Any], Any]", sympy.expand)
    return expand(expression)


def _length(tensor: Tensor, axis: int) -> int:
    return int(tensor.shape[axis])


def _stride(tensor: Tensor, axis: int) -> int:
    return int(tensor.stride(axis))


def _offset(tensor: Tensor) -> int:
    return int(tensor.storage_offset())


def _storage_bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()
