"""One graph of a model with its plan, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zcompile.ir import (
    MANAGED_ROLES,
    Compute,
    Rule,
    Schedule,
    Target,
    Tier,
    arena_peak_bytes,
    given,
    peak_bytes,
    verify,
)
from zcompile.passes.pipeline import Plan
from zcompile.passes.placement import local_values
from zcompile.passes.recompute import again_steps


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """One graph as planned: what was captured, for which target, and what came of it."""

    captured: Schedule
    source: Schedule
    """What the passes began with: ``captured``, with what runs again."""
    target: Target
    plan: Plan
    dropped: frozenset[str]
    """The saved values that forward does not hand on and backward makes again."""
    brought: tuple[str, ...]
    """What kernels that run again need of forward's arguments, by its names in backward."""

    @classmethod
    def of(cls, captured: Schedule, source: Schedule, target: Target, plan: Plan) -> GraphPlan:
        """Return ``plan``, of ``source``, which was made of ``captured``."""
        verify(plan.schedule, captured=captured, rules={Rule.KERNELS})
        dropped = local_values(source)
        own = {each.name for each in captured.values}
        there = given(source) if dropped else frozenset[str]()
        brought = (e.name for e in source.values if e.name in there and e.name not in own)
        return cls(captured, source, target, plan, dropped, tuple(brought))

    @property
    def schedule(self) -> Schedule:
        return self.plan.schedule

    @property
    def made_again_bytes(self) -> int:
        """What of the saved values this graph makes again itself."""
        made = {name for step in again_steps(self.schedule) for name in step.writes}
        return sum(e.nbytes for e in self.captured.values if e.name in made & self.dropped)

    def is_for(self, captured: Schedule, source: Schedule, target: Target) -> bool:
        """Whether this is a plan of just that."""
        return (self.captured, self.source, self.target) == (captured, source, target)

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
