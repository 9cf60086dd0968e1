"""Which values the kernels of a schedule use, and which of them they make."""

from __future__ import annotations

from collections.abc import Mapping

from zcompile.ir.schedule import Compute, Kernel, Role, Schedule, Update

GIVEN_ROLES = frozenset({Role.PARAMETER, Role.BUFFER, Role.INPUT})
"""Roles whose values always exist before the first step: a kernel changes them in place."""


def kernel_name(kernel: Kernel) -> str:
    """Return the name by which an executor finds what ``kernel`` runs."""
    return kernel.kernel if isinstance(kernel, Compute) else kernel.bucket


def operands(kernel: Kernel) -> tuple[str, ...]:
    """Return every value that ``kernel`` touches, once each: reads first, then writes."""
    return tuple(dict.fromkeys((*kernel.reads, *kernel.writes)))


def given(schedule: Schedule) -> frozenset[str]:
    """Return the names of the values that exist before the first step.

    A value of another role is given if the first kernel that touches it reads it (an
    activation in backward, a state in an update); otherwise that kernel makes it (a
    gradient in backward, a state in the first update).
    """
    found = {value.name for value in schedule.values if value.role in GIVEN_ROLES}
    seen = set(found)
    for step in schedule.steps:
        if isinstance(step, Compute | Update):
            found.update(name for name in step.reads if name not in seen)
            seen.update(operands(step))
    found.update(value.name for value in schedule.values if value.name not in seen)
    return frozenset(found)


def last_touch(schedule: Schedule) -> Mapping[str, int]:
    """Return for each value that a kernel touches the last step at which one does."""
    return {
        name: at
        for at, step in enumerate(schedule.steps)
        if isinstance(step, Compute | Update)
        for name in operands(step)
    }
