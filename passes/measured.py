"""Measured: the seconds of kernels, from what passed between the moves of a plan as it ran.

Between two moves a plan runs kernels and nothing else, so the time from the end of one to the
beginning of the next is theirs.  Where several lie between, each gets its part of it: as much as
the estimates give it, or an equal one where they say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from zcompile.ir import KERNELS, Schedule, kernel_name


def typical(runs: Sequence[Sequence[float]]) -> list[float]:
    """Return the median of each gap over several runs of one plan."""
    return [median(each) for each in zip(*runs, strict=True)]


def kernel_seconds(
    plan: Schedule, gaps: Sequence[float], estimated: Mapping[str, float]
) -> dict[str, float]:
    """Return the seconds of each kernel of ``plan``, in which ``gaps`` passed beside its moves.

    There is one gap before each move, and one at the end.  A kernel that runs several times gets
    what it takes once.  Raises ``ValueError`` if there are not as many gaps as that.
    """
    between = _between_moves(plan)
    if len(between) != len(gaps):
        raise ValueError(f"{plan.name}: {len(gaps)} gaps, but {len(between) - 1} moves")
    shares: dict[str, list[float]] = {}
    for kernels, seconds in zip(between, gaps, strict=True):
        for name, share in _shared(kernels, max(0.0, seconds), estimated):
            shares.setdefault(name, []).append(share)
    return {name: sum(each) / len(each) for name, each in shares.items()}


def _between_moves(plan: Schedule) -> list[list[str]]:
    between: list[list[str]] = [[]]
    for step in plan.steps:
        if isinstance(step, KERNELS):
            between[-1].append(kernel_name(step))
        else:
            between.append([])
    return between


def _shared(
    kernels: Sequence[str], seconds: float, estimated: Mapping[str, float]
) -> list[tuple[str, float]]:
    weights = [estimated.get(name, 0.0) for name in kernels]
    whole = sum(weights)
    if whole <= 0.0:
        weights, whole = [1.0] * len(kernels), float(len(kernels))
    return [(name, seconds * each / whole) for name, each in zip(kernels, weights, strict=True)]
