"""Pins: homes that the user decided."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from zcompile.ir import Role, Tier, Value, value_name
from zcompile.passes.placement import parameter_of

Pin = tuple[str, Tier]
"""The name of a kind, or a pattern of parameter names, and the tier it is pinned to."""

KINDS = {
    "parameters": Role.PARAMETER,
    "gradients": Role.GRADIENT,
    "optimizer": Role.STATE,
    "activations": Role.SAVED,
}


NUM_NEAR = 3
"""How many names of parameters a mistaken pattern is answered with."""


def matches(pattern: str, value: Value) -> bool:
    """Say whether the pin ``pattern`` speaks of ``value``.

    A kind speaks of the values of that kind.  A pattern speaks of the parameters whose names
    match it, and of their gradients and states.

    >>> matches("*.bias", Value("layers.0.bias:grad", 4, Role.GRADIENT))
    True
    """
    if pattern in KINDS:
        return value.role is KINDS[pattern]
    if value.role is Role.SAVED:
        return False
    return fnmatchcase(parameter_of(value), value_name(pattern))


def idle_patterns(pins: Sequence[Pin], parameters: Collection[str]) -> tuple[str, ...]:
    """Return the patterns among ``pins`` that match none of ``parameters``; kinds are none.

    >>> idle_patterns([("optimizer", Tier.NVME), ("head.*", Tier.HOST)], ["body.weight"])
    ('head.*',)
    """
    return tuple(
        pattern
        for pattern, _ in pins
        if pattern not in KINDS
        and not any(fnmatchcase(each, value_name(pattern)) for each in parameters)
    )


def names_near(pattern: str, parameters: Collection[str]) -> tuple[str, ...]:
    """Return the kinds and ``parameters`` that ``pattern`` may have meant, or some as examples.

    >>> names_near("heads.*", ["body.weight", "head.weight"])
    ('head.weight',)
    >>> names_near("optimiser", ["body.weight", "head.weight"])
    ('optimizer',)
    """
    near = get_close_matches(pattern, KINDS, 1, cutoff=0.8)
    near += get_close_matches(pattern, parameters, NUM_NEAR - len(near), cutoff=0.5)
    return tuple(near) or tuple(parameters)[:NUM_NEAR]


def pin_of(value: Value, pins: Sequence[Pin]) -> Pin | None:
    """Return the pin that decides about ``value``: the last that matches, or ``None``."""
    return next((pin for pin in reversed(pins) if matches(pin[0], value)), None)
