"""Sizes that depend on the shapes of a call: from symbols to numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch import fx

from zcompile.bridge.aliases import Size, tensors_of

Bindings = tuple[tuple[sympy.Symbol, int], ...]
"""The value of each symbol of a graph in one call, sorted by symbol; empty when all is static."""


class UnknownSize(ValueError):
    """A size that only the data of a call decides, so that no plan can count on it."""


def hint(size: Size) -> int:
    """Return ``size`` for the shapes that the graph was captured with."""
    if isinstance(size, int):
        return size
    if not _inside(size).has_hint():
        raise UnknownSize(f"the size {size} is known only when the graph has run")
    return int(_inside(size).hint)


def evaluate(size: Size, bindings: Mapping[sympy.Symbol, int]) -> int:
    """Return ``size`` with every symbol replaced by its value in ``bindings``."""
    if isinstance(size, int):
        return size
    expression = cast("Any", sympy.sympify(_inside(size).expr))
    value: Any = expression.subs(dict(bindings))
    if not value.is_number:
        raise UnknownSize(f"the size {size} is known only when the graph has run")
    return int(value)


def guards_hold(sizes: Iterable[Size], bindings: Mapping[sympy.Symbol, int]) -> bool:
    """Whether what has been captured with ``sizes`` is right where symbols have these values."""
    environments = {id(env): env for each in sizes if (env := _environment(each)) is not None}
    return all(
        bool(guard.expr.subs(dict(bindings)) != sympy.false)
        for environment in environments.values()
        for guard in environment.guards
    )


def _environment(size: Size) -> Any:
    """Return the object that keeps what tracing has assumed of symbols."""
    return None if isinstance(size, int) else _inside(size).shape_env


def evaluator(bindings: Mapping[sympy.Symbol, int]) -> Callable[[Size], int]:
    """Return `evaluate` under ``bindings``, which works out each expression once."""
    known: dict[object, int] = {}

    def size_of(size: Size) -> int:
        if isinstance(size, int):
            return size
        expression = _inside(size).expr
        if expression not in known:
            known[expression] = evaluate(size, bindings)
        return known[expression]

    return size_of


def are_equal(one: Size, other: Size) -> bool:
    """Whether two sizes are the same whatever the shapes, as far as can be told; no guard."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    difference = expression_of(one) - expression_of(other)
    return bool(cast("Any", sympy.expand)(difference) == 0)  # 4*(s - 1) is 4*s - 4


def is_known(size: Size) -> bool:
    """Whether ``size`` is a number, or one as soon as the shapes of a call are known."""
    return isinstance(size, int) or bool(_inside(size).has_hint())


def symbol_placeholders(graph: fx.Graph) -> dict[sympy.Symbol, fx.Node]:
    """Return the placeholder that stands for each symbol of ``graph`` which has one."""
    found: dict[sympy.Symbol, fx.Node] = {}
    for node in graph.find_nodes(op="placeholder"):
        symbol = symbol_of(node.meta.get("val"))
        if symbol is not None:
            found.setdefault(symbol, node)
    return found


def symbols_of(node: fx.Node) -> set[sympy.Symbol]:
    """Return the symbols in the sizes, strides and offsets of what ``node`` stands for."""
    sizes: list[object] = [node.meta.get("val")]
    for tensor in tensors_of(node):
        if tensor.layout is torch.strided:
            sizes += [*tensor.shape, *tensor.stride(), tensor.storage_offset()]
    return {
        symbol
        for size in sizes
        if isinstance(size, torch.SymInt)
        for symbol in cast("Any", sympy.sympify(_inside(size).expr)).free_symbols
    }


def symbol_of(size: object) -> sympy.Symbol | None:
    """Return the symbol that ``size`` is, if it is one and nothing more."""
    expression: object = _inside(size).expr if isinstance(size, torch.SymInt) else None
    return expression if isinstance(expression, sympy.Symbol) else None


def expression_of(size: Size) -> Any:
    """Return ``size`` as sympy knows it."""
    return sympy.sympify(size if isinstance(size, int) else _inside(size).expr)


def _inside(size: torch.SymInt) -> Any:
    """Return the object behind a symbolic size; torch gives it no type."""
    return cast("Any", size).node
