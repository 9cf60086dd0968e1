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
from zcompile.ir.schedule import (
    KERNELS,
    MOVABLE_ROLES,
    Compute,
    Kernel,
    Role,
    Schedule,
    Step,
    Tier,
)
from zcompile.ir.target import Target
from zcompile.ir.text import render_step, unfit_names
from zcompile.ir.uses import kernel_name
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
    "without_again",
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
    kernels: set[str] = set()
    for at, step in enumerate(schedule.steps):
        if not isinstance(step, KERNELS):
            if step.value in known:
                continue
            used: tuple[str, ...] = (step.value,)
        else:
            kernels.add(kernel_name(step))
            used = step.reads + step.writes
        if not known.issuperset(used):
            name = next(each for each in used if each not in known)
            raise ScheduleError(schedule, Rule.FORM, f"there is no value %{name}", at)
    for name in schedule.outputs:
        if name not in known:
            raise ScheduleError(schedule, Rule.FORM, f"there is no value %{name} to output")
    for name in unfit_names({schedule.name, *known, *kernels}):
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
    return replace(schedule, steps=tuple(_kernels(schedule)), arena_bytes=0, vacates=False)


def _check_kernels(schedule: Schedule, captured: Schedule) -> None:
    """Compare with what was captured, or with that and what a pass has let run again."""
    if _runs_again(schedule) and not _runs_again(captured):
        _check_again(schedule, captured)
        schedule = without_again(schedule, captured)
    ours, theirs = _kernels(schedule), _kernels(captured)
    for at, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our is not their and our != their:
            why = f"kernel {at} is {render_step(our)}; it was captured as {render_step(their)}"
            raise ScheduleError(schedule, Rule.KERNELS, why)
    if len(ours) != len(theirs):
        why = f"{len(ours)} kernels, but {len(theirs)} were captured"
        raise ScheduleError(schedule, Rule.KERNELS, why)
    is_same = len(schedule.values) == len(captured.values) and all(
        what is was or (what.name, what.nbytes, what.role) == (was.name, was.nbytes, was.role)
        for what, was in zip(schedule.values, captured.values, strict=True)
    )
    if not is_same or not _are_outputs(schedule, captured):
        raise ScheduleError(schedule, Rule.KERNELS, "values or outputs differ from the captured")


def _are_outputs(schedule: Schedule, captured: Schedule) -> bool:
    """Whether the outputs are those captured, but for saved values that are made again."""
    if schedule.outputs == captured.outputs:
        return True
    saved = {value.name for value in captured.values if value.role is Role.SAVED}
    ours = set(schedule.outputs)
    left = tuple(name for name in captured.outputs if name in ours or name not in saved)
    return schedule.outputs == left


def _check_again(schedule: Schedule, captured: Schedule) -> None:
    """Check that what runs again changes nothing that was there: saved values it makes, first."""
    roles = {value.name: value.role for value in captured.values}
    touched: set[str] = set()
    for at, step in enumerate(schedule.steps):
        if not isinstance(step, KERNELS):
            continue
        if isinstance(step, Compute) and step.again:
            for name in step.writes:
                role = roles.get(name, Role.SAVED)
                if role is not Role.SAVED or name in touched:
                    why = f"makes %{name} again, which is {role}" + (
                        " and was read or made before" if name in touched else ""
                    )
                    raise ScheduleError(schedule, Rule.KERNELS, why, at)
        touched.update(step.reads, step.writes)


def _is_again(step: Step) -> bool:
    return isinstance(step, Compute) and step.again


def _runs_again(schedule: Schedule) -> bool:
    return any(step.again for step in schedule.steps if isinstance(step, Compute))


def without_again(schedule: Schedule, captured: Schedule) -> Schedule:
    """Return ``schedule`` without what runs again, and without the values that came with that.

    Those are the ones that were not ``captured``; their moves go too.
    """
    own = {value.name for value in captured.values}
    return replace(
        schedule,
        values=tuple(value for value in schedule.values if value.name in own),
        steps=tuple(
            step
            for step in schedule.steps
            if not _is_again(step) and (isinstance(step, KERNELS) or step.value in own)
        ),
    )


def _kernels(schedule: Schedule) -> list[Kernel]:
    return [step for step in schedule.steps if isinstance(step, KERNELS)]


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
