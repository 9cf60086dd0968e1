"""What must hold for every schedule, whoever made it.

Each rule has a name; a plan in the making may be checked against some of them, a finished
plan against all.  Checking takes time linear in the number of steps, give or take the
number of copies in the arena at once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from zcompile.ir.memory import device_profile, host_profile, peak_bytes
from zcompile.ir.rules import ALL_RULES, Rule, ScheduleError
from zcompile.ir.schedule import KERNELS, MOVABLE_ROLES, Schedule, Tier
from zcompile.ir.target import Target
from zcompile.ir.text import is_name, render_step
from zcompile.ir.uses import kernel_name, operands
from zcompile.ir.walk import Walk

__all__ = [
    "ALL_RULES",
    "Rule",
    "ScheduleError",
    "device_profile",
    "host_profile",
    "peak_bytes",
    "strip",
    "verify",
]


def _check_values(schedule: Schedule) -> None:
    known: set[str] = set()
    for value in schedule.values:
        why = None
        if value.name in known:
            why = f"there are two values %{value.name}"
        elif value.nbytes < 0:
            why = f"%{value.name} has {value.nbytes} B"
        elif value.home is not Tier.DEVICE and value.role not in MOVABLE_ROLES:
            why = f"%{value.name} is no managed value; its home must be the device"
        if why is not None:
            raise ScheduleError(schedule, Rule.FORM, why)
        known.add(value.name)


def _check_names(schedule: Schedule) -> None:
    known = {value.name for value in schedule.values}
    kernels = {kernel_name(step) for step in schedule.steps if isinstance(step, KERNELS)}
    for at, step in enumerate(schedule.steps):
        used = operands(step) if isinstance(step, KERNELS) else (step.value,)
        for name in used:
            if name not in known:
                raise ScheduleError(schedule, Rule.FORM, f"there is no value %{name}", at)
    for name in schedule.outputs:
        if name not in known:
            raise ScheduleError(schedule, Rule.FORM, f"there is no value %{name} to output")
    for name in sorted({schedule.name, *known, *kernels}):
        if not is_name(name):
            raise ScheduleError(schedule, Rule.FORM, f"{name!r} is not legal as a name")


def _check_budgets(schedule: Schedule, target: Target) -> None:
    for option, budget, profile in (
        ("device_budget", target.device_budget, device_profile(schedule, target)),
        ("host_budget", target.host_budget, host_profile(schedule, target)),
    ):
        for at, held in enumerate(profile):
            if budget is not None and held > budget:
                why = f"{held} B held, over the {option} of {budget} B"
                raise ScheduleError(schedule, Rule.BUDGET, why, at)


_WALKED = frozenset({Rule.RESIDENT, Rule.RETURNED, Rule.SPACE})
"""The rules that are checked step by step."""


def strip(schedule: Schedule) -> Schedule:
    """Return ``schedule`` without the steps that planning inserted: its kernels alone."""
    kernels = tuple(step for step in schedule.steps if isinstance(step, KERNELS))
    return replace(schedule, steps=kernels, arena_bytes=0, vacates=False)


def _check_kernels(schedule: Schedule, captured: Schedule) -> None:
    ours, theirs = strip(schedule), strip(captured)
    for at, (our, their) in enumerate(zip(ours.steps, theirs.steps, strict=False)):
        if our != their:
            why = f"kernel {at} is {render_step(our)}; it was captured as {render_step(their)}"
            raise ScheduleError(schedule, Rule.KERNELS, why)
    if len(ours.steps) != len(theirs.steps):
        why = f"{len(ours.steps)} kernels, but {len(theirs.steps)} were captured"
        raise ScheduleError(schedule, Rule.KERNELS, why)
    what_is = [(value.name, value.nbytes, value.role) for value in schedule.values]
    what_was = [(value.name, value.nbytes, value.role) for value in captured.values]
    if what_is != what_was or schedule.outputs != captured.outputs:
        raise ScheduleError(schedule, Rule.KERNELS, "values or outputs differ from the captured")


def verify(
    schedule: Schedule,
    target: Target | None = None,
    captured: Schedule | None = None,
    rules: Collection[Rule] = ALL_RULES,
) -> None:
    """Raise ``ScheduleError`` at the first step of ``schedule`` that breaks one of ``rules``.

    The budgets (V4) are checked if there is a ``target`` to name them, the kernels (V5) if
    there is a ``captured`` schedule to compare with.
    """
    _check_values(schedule)
    _check_names(schedule)
    if _WALKED & set(rules):
        Walk(schedule, rules).run()
    if target is not None and Rule.BUDGET in rules:
        _check_budgets(schedule, target)
    if captured is not None and Rule.KERNELS in rules:
        _check_kernels(schedule, captured)
