"""Pins: homes that the user decided."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from zcompile.ir import Role, Tier, Value
from zcompile.passes.placement import parameter_of

Pin = tuple[str, Tier]
"""The name of a kind, or a pattern of parameter names, and the tier it is pinned to."""

KINDS = {
    "parameters": Role.PARAMETER,
    "gradients": Role.GRADIENT,
    "optimizer": Role.STATE,
}


def matches(pattern: str, value: Value) -> bool:
    """Say whether the pin ``pattern`` speaks of ``value``.

    A kind speaks of the values of that kind.  A pattern speaks of the parameters whose names
    match it, and of their gradients and states.

    >>> matches("*.bias", Value("layers.0.bias:grad", 4, Role.GRADIENT))
    True
    """
    if pattern in KINDS:
        return value.role is KINDS[pattern]
    return fnmatchcase(parameter_of(value), pattern)


def pin_of(value: Value, pins: Sequence[Pin]) -> Pin | None:
    """Return the pin that decides about ``value``: the last that matches, or ``None``."""
    return next((pin for pin in reversed(pins) if matches(pin[0], value)), None)
