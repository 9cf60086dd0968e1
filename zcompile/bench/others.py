"""How busy others kept the machine while it was measured."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Self

from zcompile.runtime.procfs import busy_seconds

DISTURBING = 0.1
"""The part of all processors from which on others disturb."""


@dataclass(frozen=True, slots=True)
class Meter:
    """A moment: the clock, what all processors had done by then, and what this process had."""

    clock_s: float
    busy_s: float
    own_s: float

    @classmethod
    def now(cls) -> Self:
        """Read all three, with the children of this process that have ended."""
        used = os.times()
        own_s = used.user + used.system + used.children_user + used.children_system
        return cls(time.monotonic(), busy_seconds(), own_s)

    def others_since(self, before: Meter) -> float:
        """Return how many processors others kept busy since ``before``, on average."""
        passed_s = self.clock_s - before.clock_s
        others_s = (self.busy_s - before.busy_s) - (self.own_s - before.own_s)
        return max(0.0, others_s / passed_s) if passed_s > 0 else 0.0


def disturbed(others: float, processors: int) -> str | None:
    """Say that ``others`` of all ``processors`` were kept busy; ``None`` if it hardly matters.

    >>> print(disturbed(0.05, 2))
    None
    >>> disturbed(0.5, 2)
    'others kept 0.5 of 2 processors busy meanwhile: the figures are too low; measure again when \
the machine is idle'
    """
    if others < DISTURBING * processors:
        return None
    return (
        f"others kept {others:.1f} of {processors} processors busy meanwhile: the figures are too "
        "low; measure again when the machine is idle"
    )
