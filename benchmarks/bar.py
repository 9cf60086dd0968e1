"""Figures beside the bars that they have to reach."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MARK = "bar |"
"""What such a line begins with, so that `bars.py` can gather them."""


@dataclass(frozen=True)
class Bar:
    """The least or the most that ``what`` may be."""

    what: str
    bound: float
    at_least: bool = True

    def show(self, values: Sequence[float]) -> None:
        """Print the median of ``values``, where it lies with 95 % confidence, and the bar."""
        value = statistics.median(values)
        low, high = interval(values)
        holds = value >= self.bound if self.at_least else value <= self.bound
        word = "at least" if self.at_least else "at most"
        verdict = "holds" if holds else "MISSED"
        print(
            f"{MARK} {self.what:58} {value:7.3f} ({low:.3f} to {high:.3f}) "
            f"{word} {self.bound:g}: {verdict}",
            flush=True,
        )


def ratios(others: Sequence[float], ours: Sequence[float]) -> list[float]:
    """Return what the others took over what we took, round by round."""
    return [other / own for other, own in zip(others, ours, strict=True)]


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the bootstrapped interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    edge = int((1 - confidence) / 2 * len(medians))
    return medians[edge], medians[-1 - edge]
