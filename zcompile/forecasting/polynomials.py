"""Whole numbers that depend on two lengths as polynomials do, found from a few of their values.

Sizes and flops of a captured graph are polynomials of the batch and of the sequence.  Their
values at a grid of lengths decide them; one more point, off the grid, tells whether they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from typing import Any, cast

import sympy as sp  # pyright: ignore[reportMissingTypeStubs]

BATCH, SEQUENCE = sp.symbols("batch sequence", positive=True, integer=True)

ALGEBRA: Any = cast("Any", sp)
"""sympy, where its own annotations lead type checkers nowhere."""

DEGREE = 2
"""Of each length, at the most: attention squares the sequence, a contrastive loss the batch."""

NODES = (2, 3, 4)
"""Lengths along each axis of the grid."""

GRID: tuple[tuple[int, int], ...] = (*product(NODES, NODES), (7, 9))
"""Where values are taken: the grid, and behind it the point that is not on it."""

POWERS = tuple(product(range(DEGREE + 1), repeat=2))

Coefficients = tuple[int, ...]
"""One for each of `POWERS`."""

ZERO: Coefficients = (0,) * len(POWERS)


class NotPolynomial(ValueError):
    """A number that depends on the lengths in another way."""


def interpolated(values: Sequence[int]) -> Coefficients:
    """Return the polynomial that has these ``values`` at `GRID`.

    Raises ``NotPolynomial`` if there is none with whole coefficients.

    >>> interpolated([3 * b * s + 5 for b, s in GRID])[0]
    5
    """
    return _interpolated(tuple(values))


@cache
def _interpolated(values: tuple[int, ...]) -> Coefficients:
    *on_grid, beyond = values
    matrix, divisor = _inverse()
    found: list[int] = []
    for row in matrix:
        coefficient, rest = divmod(sum(a * b for a, b in zip(row, on_grid, strict=True)), divisor)
        if rest:
            raise NotPolynomial(f"{values} are no values of a polynomial with whole coefficients")
        found.append(coefficient)
    if value_at(found, *GRID[-1]) != beyond:
        raise NotPolynomial(f"{values} are no values of a polynomial of degree {DEGREE}")
    return tuple(found)


def value_at(coefficients: Sequence[int], batch: int, sequence: int) -> int:
    """Return the value of the polynomial for these lengths."""
    terms = zip(coefficients, POWERS, strict=True)
    return sum(c * batch**i * sequence**j for c, (i, j) in terms)


def plus(a: Coefficients, b: Coefficients) -> Coefficients:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def minus(a: Coefficients, b: Coefficients) -> Coefficients:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def expression(coefficients: Coefficients) -> sp.Expr:
    """Return the polynomial in `BATCH` and `SEQUENCE`.

    >>> expression(interpolated([3 * b * s + 5 for b, s in GRID]))
    3*batch*sequence + 5
    """
    terms = (c * BATCH**i * SEQUENCE**j for c, (i, j) in zip(coefficients, POWERS, strict=True))
    found: sp.Expr = sp.Add(*terms)
    return found


def largest(candidates: Iterable[Coefficients]) -> tuple[Coefficients, ...]:
    """Return those that are the largest for some lengths, as far as coefficients tell.

    One that has no coefficient above those of another is never larger.

    >>> len(largest([ZERO, (1,) + ZERO[1:], (2,) + ZERO[1:], (0, 1) + ZERO[2:]]))
    2
    """
    kept: list[Coefficients] = []
    for each in sorted(set(candidates), key=lambda c: (-sum(c), c)):
        if not any(all(a <= b for a, b in zip(each, other, strict=True)) for other in kept):
            kept.append(each)
    return tuple(kept)


@cache
def _inverse() -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return the inverse of the grid's matrix of powers, as whole numbers over one divisor."""
    rows = [[b**i * s**j for i, j in POWERS] for b, s in GRID[:-1]]
    inverse = ALGEBRA.Matrix(rows).inv()
    divisor = int(sp.ilcm(*(each.q for each in inverse)))
    whole = tuple(
        tuple(int(inverse[at, to] * divisor) for to in range(len(POWERS)))
        for at in range(len(POWERS))
    )
    return whole, divisor
