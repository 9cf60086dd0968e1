"""Linear programs: built row by row, solved by HiGHS, and checked without trusting it.

Note [Checking a bound].  For any multipliers of the rows, with those of inequalities not
negative, the least of the Lagrangian over the boxes of the columns is at most the optimum (weak
duality: Boyd and Vandenberghe, "Convex Optimization", section 5.2.2).  As every box is
finite, that least is a sum over the columns.  So whatever multipliers a solver returns, wrong
ones included, give a true bound, and a look at every nonzero is enough to compute it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Terms = Iterable[tuple[int, float]]
"""Columns and what they are multiplied by."""

METHOD = "highs-ipm"
"""Interior point, then crossover; one thread, so the same program gives the same solution."""


@dataclass(slots=True)
class Rows:
    """Rows of one kind, as lists of their nonzeros."""

    at: list[int] = field(default_factory=list[int])
    columns: list[int] = field(default_factory=list[int])
    factors: list[float] = field(default_factory=list[float])
    limits: list[float] = field(default_factory=list[float])

    def add(self, terms: Terms, limit: float) -> int:
        """Add a row with that right-hand side; return its number."""
        row = len(self.limits)
        for column, factor in terms:
            self.at.append(row)
            self.columns.append(column)
            self.factors.append(factor)
        self.limits.append(limit)
        return row

    def weighed(self, multipliers: Numbers, num_columns: int) -> Numbers:
        """Return by column the sum of its factors, each times the multiplier of its row."""
        factors = np.asarray(self.factors, np.float64)
        columns, at = np.asarray(self.columns, np.int64), np.asarray(self.at, np.int64)
        found = np.zeros(num_columns, np.float64)
        np.add.at(found, columns, factors * multipliers[at])
        return found


@dataclass(slots=True)
class Program:
    """Minimise ``costs`` over columns in boxes, rows ``at_most`` their limits or ``equal``.

    Each column lies between its ``least`` and ``most``, both finite.
    """

    costs: list[float] = field(default_factory=list[float])
    least: list[float] = field(default_factory=list[float])
    most: list[float] = field(default_factory=list[float])
    at_most: Rows = field(default_factory=Rows)
    equal: Rows = field(default_factory=Rows)

    def column(self, most: float, cost: float = 0.0, least: float = 0.0) -> int:
        """Add a column; return its number."""
        assert 0 <= least <= most < float("inf"), "a box must be finite and not empty"
        self.costs.append(cost)
        self.least.append(least)
        self.most.append(most)
        return len(self.costs) - 1

    def columns(self, count: int, most: float) -> range:
        """Add ``count`` columns of one box and no cost; return their numbers."""
        first = len(self.costs)
        for _ in range(count):
            self.column(most)
        return range(first, first + count)

    @property
    def num_nonzeros(self) -> int:
        return len(self.at_most.at) + len(self.equal.at)


@dataclass(frozen=True, slots=True)
class Duals:
    """A multiplier for every row: what the optimum changes by when its limit grows by one.

    Those of ``at_most`` are never positive.
    """

    at_most: tuple[float, ...]
    equal: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Solved:
    """What a solver says: the columns, and multipliers that are to be checked."""

    columns: tuple[float, ...]
    duals: Duals


def solve(program: Program) -> Solved | None:
    """Return the solution that HiGHS finds for ``program``; ``None`` if there is none.

    Raises ``RuntimeError`` with the solver's own words if it gives up.
    """
    # Importing it takes half a second, which only those pay who plan for a machine.
    from scipy.optimize import (  # pyright: ignore[reportMissingTypeStubs]
        linprog,  # pyright: ignore[reportUnknownVariableType]
    )

    answer: Any = linprog(
        program.costs,
        A_ub=_matrix(program.at_most, len(program.costs)),
        b_ub=program.at_most.limits,
        A_eq=_matrix(program.equal, len(program.costs)),
        b_eq=program.equal.limits,
        bounds=list(zip(program.least, program.most, strict=True)),
        method=METHOD,
    )
    if answer.status == 2:
        return None
    if answer.status != 0:
        raise RuntimeError(f"HiGHS found no optimum: {answer.message}")
    return Solved(
        tuple(answer.x.tolist()),
        Duals(tuple(answer.ineqlin.marginals.tolist()), tuple(answer.eqlin.marginals.tolist())),
    )


def _matrix(rows: Rows, num_columns: int) -> Any:
    from scipy.sparse import csr_array  # pyright: ignore[reportMissingTypeStubs]

    shape = (len(rows.limits), num_columns)
    return csr_array((rows.factors, (rows.at, rows.columns)), shape=shape, dtype=np.float64)


def checked_bound(program: Program, duals: Duals) -> float:
    """Return a bound below the optimum of ``program``; see Note [Checking a bound]."""
    width = len(program.costs)
    at_most = np.minimum(np.asarray(duals.at_most, np.float64), 0.0)
    equal = np.asarray(duals.equal, np.float64)
    reduced = (
        np.asarray(program.costs, np.float64)
        - program.at_most.weighed(at_most, width)
        - program.equal.weighed(equal, width)
    )
    corners = np.where(reduced > 0, program.least, program.most) * reduced
    limits = at_most @ np.asarray(program.at_most.limits, np.float64)
    limits += equal @ np.asarray(program.equal.limits, np.float64)
    return float(limits + corners.sum())
