"""The states that the optimizers of a process will have, before any of them has stepped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from torch import Tensor

from zcompile.ir import value_name
from zcompile.optim.rules import rule_of
from zcompile.optim.states import Names, optimizers_over
from zcompile.precision import Precision


def foreseen_states(names: Names, precision: Precision) -> tuple[str, ...]:
    """Return the states that optimizers over parameters with ``names`` have or will make.

    None where there is no optimizer yet; of one whose update torch carries out only those that
    it has already.
    """
    found: dict[str, None] = {}
    for optimizer in optimizers_over(names):
        rule = rule_of(optimizer)
        if rule is not None:
            for group in optimizer.param_groups:
                found.update(dict.fromkeys(rule.state_names(group)))
        # A loaded state dict can leave keys that are no parameters.
        states = cast("Mapping[object, Mapping[str, object]]", optimizer.state)
        for param, state in states.items():
            if isinstance(param, Tensor) and names.name_of(param) is not None:
                kinds = map(precision.state_named, _shaped_like(param, state))
                found.update(dict.fromkeys(kind for kind in kinds if kind is not None))
    return tuple(found)


def _shaped_like(param: Tensor, state: Mapping[str, object]) -> Iterator[str]:
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == param.shape and value.dim() > 0:
            yield value_name(str(key))
