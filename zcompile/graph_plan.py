"""One graph of a model with its plan, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zcompile.ir import (
    MANAGED_ROLES,
    Compute,
    Schedule,
    Target,
    Tier,
    arena_peak_bytes,
    peak_bytes,
)
from zcompile.passes.pipeline import Plan


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """One graph as planned: what was captured, for which target, and what came of it."""

    captured: Schedule
    target: Target
    plan: Plan

    @property
    def schedule(self) -> Schedule:
        return self.plan.schedule

    @property
    def moves(self) -> bool:
        """Whether anything moves: a graph without moves needs no executor."""
        return any(not isinstance(step, Compute) for step in self.schedule.steps)

    @property
    def peak_bytes(self) -> int:
        """The most device bytes at any step, reserved ones included."""
        return peak_bytes(self.schedule, self.target)

    @property
    def passing_bytes(self) -> int:
        """What is missing to the peak when homes, buffers and the arena at its fullest count.

        With a static arena it is the most ordinary memory that the kernels take.
        """
        at_home = sum(
            each.nbytes
            for each in self.schedule.values
            if each.role in MANAGED_ROLES and each.home is Tier.DEVICE
        )
        fixed = self.target.reserved_bytes + arena_peak_bytes(self.schedule) + at_home
        return max(0, self.peak_bytes - fixed)


MAX_UPDATES = 16
"""How many planned updates can be looked at: more than most models have optimizers."""


class Updates:
    """The latest plan of each update of other values, the oldest first.

    ``peak_bytes`` is the most that any so far lets the device hold.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._plans: dict[tuple[str, ...], GraphPlan] = {}

    def add(self, update: GraphPlan) -> None:
        """Take note of a plan; one that moves nothing is not kept."""
        self.peak_bytes = max(self.peak_bytes, update.peak_bytes)
        if names := tuple(each.name for each in update.captured.values):
            self._plans.pop(names, None)
            self._plans[names] = update
            if len(self._plans) > MAX_UPDATES:
                del self._plans[next(iter(self._plans))]

    def __iter__(self) -> Iterator[GraphPlan]:
        return iter(tuple(self._plans.values()))
