"""Which values the kernels of a schedule use, and which of them they make."""

from __future__ import annotations

from collections.abc import Mapping

from zcompile.ir.schedule import KERNELS, Compute, Kernel, Role, Schedule

GIVEN_ROLES = frozenset({Role.PARAMETER, Role.BUFFER, Role.INPUT})
"""Roles whose values always exist before the first step: a kernel changes them in place."""

_PERHAPS_GIVEN_ROLES = frozenset(Role) - GIVEN_ROLES - {Role.INTERMEDIATE}

SEPARATOR = "/"
"""Stands between a forward graph and what is its own, where that is named in a backward one."""


def name_in_backward(forward: str, name: str) -> str:
    """Return what a value or kernel of a forward graph's own is called in its backward graph.

    >>> name_in_backward("forward.0", "seg_5")
    'forward.0/seg_5'
    """
    return f"{forward}{SEPARATOR}{name}"


def name_in_forward(name: str) -> str:
    """Return what a kernel that runs again in backward is called in its forward graph.

    >>> name_in_forward("forward.0/seg_5")
    'seg_5'
    """
    return name.partition(SEPARATOR)[2]


def kernel_name(kernel: Kernel) -> str:
    """Return the name by which an executor finds what ``kernel`` runs."""
    return kernel.kernel if isinstance(kernel, Compute) else kernel.bucket


def operands(kernel: Kernel) -> tuple[str, ...]:
    """Return every value that ``kernel`` touches, once each: reads first, then writes."""
    return tuple(dict.fromkeys(kernel.reads + kernel.writes))


def given(schedule: Schedule) -> frozenset[str]:
    """Return the names of the values that exist before the first step.

    An intermediate is never given.  An activation or a gradient is, unless a kernel makes
    it: writes it before any kernel reads it.  Every other value always is.
    """
    made = {value.name for value in schedule.values if value.role is Role.INTERMEDIATE}
    untouched = {value.name for value in schedule.values if value.role in _PERHAPS_GIVEN_ROLES}
    for step in schedule.steps:
        if not isinstance(step, KERNELS):
            continue
        if not untouched:
            break
        untouched.difference_update(step.reads)
        if not step.writes:
            continue
        # What an update writes it changes in place, so it was there.
        if isinstance(step, Compute):
            made.update(untouched.intersection(step.writes))
        untouched.difference_update(step.writes)
    return frozenset([value.name for value in schedule.values]).difference(made)


def last_touch(schedule: Schedule) -> Mapping[str, int]:
    """Return for each value that a kernel touches the last step at which one does."""
    found: dict[str, int] = {}
    for at, step in enumerate(schedule.steps):
        if isinstance(step, KERNELS):
            for name in step.reads:
                found[name] = at
            for name in step.writes:
                found[name] = at
    return found
