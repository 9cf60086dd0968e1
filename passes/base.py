"""What a pass is, and how a list of them runs."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Protocol

from zcompile.ir import ALL_RULES, Rule, Schedule, Target, render, verify

STREAMED = "streamed"
"""Every read of a value whose home is off the device has its copy there (V1)."""
OFFLOADED = "offloaded"
"""Whatever is made or changed on the device goes back to its home (V2)."""
PLACED = "placed"
"""Every value has the home that the target gives it."""
PACKED = "packed"
"""Every fetch has its offset in the arena."""

PROMISES = {STREAMED: Rule.RESIDENT, OFFLOADED: Rule.RETURNED}
"""The rules that hold only from some pass on; all others hold from the start."""


class Pass(Protocol):
    """A frozen dataclass of its options, called with a schedule and a target.

    ``needs`` are the facts that earlier passes must have given, ``gives`` those that hold
    afterwards.  A pass returns a new schedule and touches nothing else.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    gives: ClassVar[frozenset[str]]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __call__(self, schedule: Schedule, target: Target) -> Schedule: ...


@dataclass(frozen=True, slots=True, repr=False)
class Stage:
    """One pass as it ran: what went in and what came out.  Printing it shows the difference."""

    name: str
    before: Schedule
    after: Schedule

    def diff(self) -> str:
        """Return the unified diff of the two texts; empty if nothing changed."""
        lines = difflib.unified_diff(
            render(self.before).splitlines(),
            render(self.after).splitlines(),
            f"before {self.name}",
            f"after {self.name}",
            lineterm="",
            n=1,
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.diff() or f"{self.name} changed nothing"

    def __repr__(self) -> str:
        before, after = len(self.before.steps), len(self.after.steps)
        return f"<Stage {self.name}: {before} steps, then {after}>"


def rules_given(facts: Collection[str]) -> frozenset[Rule]:
    """Return the rules that a schedule keeps about which ``facts`` hold.

    The budget (V4) is not among them: it is a matter of the whole plan.
    """
    later = {rule for fact, rule in PROMISES.items() if fact not in facts}
    return ALL_RULES - later - {Rule.BUDGET}


def run(passes: Sequence[Pass], schedule: Schedule, target: Target) -> tuple[Stage, ...]:
    """Run ``passes`` in order, verifying the schedule around each one.

    Each stage is checked against all rules that the passes so far have promised and against
    the kernels of the first schedule.  Raises ``ScheduleError`` if one is broken.
    """
    return Runs(schedule, target).of(passes)


class Runs:
    """What several pipelines make of one ``schedule``: what they begin with alike is made once."""

    def __init__(self, schedule: Schedule, target: Target) -> None:
        self.schedule = schedule
        self.target = target
        self._stages: dict[tuple[Pass, ...], Stage] = {}

    def of(self, passes: Sequence[Pass]) -> tuple[Stage, ...]:
        """Return what `run` does."""
        if not passes:
            verify(self.schedule, rules=rules_given(()))
        found: list[Stage] = []
        for number in range(1, len(passes) + 1):
            beginning = tuple(passes[:number])
            stage = self._stages.get(beginning)
            if stage is None:
                stage = self._next(beginning, found[-1].after if found else None)
                self._stages[beginning] = stage
            found.append(stage)
        return tuple(found)

    def _next(self, passes: Sequence[Pass], before: Schedule | None) -> Stage:
        """Run the last of ``passes``; ``before`` is what those ahead of it made, if any did."""
        facts = set(passes[0].needs).union(*(each.gives for each in passes[:-1]))
        if before is None:
            before = self.schedule
            verify(before, rules=rules_given(facts))
        last = passes[-1]
        after = last(before, self.target)
        if after is not before or not last.gives <= facts:
            verify(after, captured=self.schedule, rules=rules_given(facts | last.gives))
        return Stage(last.name, before, after)


def check_percent(of: str, percent: int) -> None:
    """Raise ``ValueError`` unless the option ``spare_percent`` of a pass is a percentage."""
    if not 0 <= percent <= 100:
        raise ValueError(f"{of}: spare_percent={percent} must be from 0 to 100")


def check_not_negative(of: str, option: str, number: int) -> None:
    """Raise ``ValueError`` if the ``option`` of a pass is negative."""
    if number < 0:
        raise ValueError(f"{of}: {option}={number} must not be negative")
