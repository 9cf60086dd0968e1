"""The rules of the IR by name, and the error that says which one is broken and where."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from zcompile.ir.schedule import Schedule, Step
from zcompile.ir.text import render_step


class Rule(StrEnum):
    """The rules of the IR; ``verify`` says which one is broken."""

    FORM = "V0"
    """Names are legal, known and unique; only managed values have homes off the device."""
    RESIDENT = "V1"
    """A value is on the device at every read, its fetch waited for and no release between."""
    RETURNED = "V2"
    """Every copy is released once, a dirty one after it was offloaded; tickets pair up."""
    SPACE = "V3"
    """Two copies in the arena at the same time do not overlap."""
    BUDGET = "V4"
    """Device and host bytes stay within the budgets at every step."""
    KERNELS = "V5"
    """Without the inserted steps the schedule is the captured one."""


ALL_RULES = frozenset(Rule)


class ScheduleError(ValueError):
    """A schedule breaks a rule of the IR.

    ``rule`` is the rule, ``step`` the index of the first step that breaks it, ``None`` if
    the fault is not at a step.  The text shows the step and its neighbours.
    """

    def __init__(self, schedule: Schedule, rule: Rule, why: str, step: int | None = None) -> None:
        self.schedule = schedule
        self.rule = rule
        self.why = why
        self.step = step
        super().__init__(schedule, rule, why, step)

    def __str__(self) -> str:
        place = (
            self.schedule.name if self.step is None else f"{self.schedule.name}, step {self.step}"
        )
        near = [] if self.step is None else _neighbourhood(self.schedule.steps, self.step)
        return "\n".join([f"{self.rule}: {place}: {self.why}", *near])


def _neighbourhood(steps: Sequence[Step], at: int) -> list[str]:
    near = range(max(0, at - 2), min(len(steps), at + 3))
    return [f"{'->' if i == at else '  '} {i:5d}  {render_step(steps[i])}" for i in near]
