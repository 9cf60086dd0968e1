"""States that are kept in other types than torch's, in and out of state dicts with all their bits.

Note [Through torch's casts].  ``Optimizer.load_state_dict`` casts every floating point state to
the type of its parameter, so a master would come back as the parameter.  But entries of
``state`` that belong to no parameter it copies as they are.  So a state dict of an optimizer
that we update holds such states twice, as the same tensors: under their parameters, where
people look for them, and under ``KEY``, where they survive.  Loading works whether we have met
the optimizer before or not: what waits under ``KEY`` is put back when we meet it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from zcompile.optim.claims import unused
from zcompile.optim.host import Host
from zcompile.optim.rule import Group, Rule
from zcompile.optim.storage import Storage
from zcompile.precision import MASTER

KEY = "zinf.full_precision"
"""The entry of a state dict's ``state`` that keeps tensors by parameter and by kind."""

States = dict[int, dict[str, Tensor]]


def keep_types(optimizer: Optimizer, state_dict: dict[str, Any], host: Host) -> None:
    """Add to ``state_dict`` what loading it would cast."""
    full: States = {}
    state: dict[object, Any] = state_dict["state"]
    numbers = (number for group in state_dict["param_groups"] for number in group["params"])
    for number, (_, param) in zip(numbers, _params(optimizer), strict=True):
        if host.name_of(param) is None or number not in state:
            continue
        kept = {
            kind: value
            for kind, value in state[number].items()
            if isinstance(value, Tensor) and kind != "step" and value.dtype is not param.dtype
        }
        if kept:
            full[number] = kept
    if full:
        state_dict["state"] = {**state, KEY: full}


def settle_types(optimizer: Optimizer, rule: Rule, host: Host) -> None:
    """Let the states of managed parameters have the types that they are kept in.

    They may have been loaded, or made by torch itself.  Raises ``ValueError`` for states that
    cannot be turned into what is asked for.
    """
    cast_masters: list[str] = []
    _put_back(optimizer, rule, host)
    if host.precision.plain:
        return
    for group, param in _params(optimizer):
        state = optimizer.state.get(param)
        if state and (name := host.name_of(param)) is not None:
            storage = Storage.of(host.precision, param.dtype, rule.state_names(group))
            if not storage.plain:
                _drop_cast_master(name, state, storage, cast_masters)
                _convert(name, param, cast("dict[str, object]", state), storage, host)
    if cast_masters:
        warnings.warn(
            f"the masters of {len(cast_masters)} parameters, {cast_masters[0]} the first, are not "
            "in fp32 as they have been loaded, and begin anew as the parameters; load the state "
            f"dict as it was saved, with its entry {KEY!r}, and with the same options",
            stacklevel=2,
        )


def _params(optimizer: Optimizer) -> Iterator[tuple[Group, Tensor]]:
    for group in optimizer.param_groups:
        for param in group["params"]:
            yield group, param


def _put_back(optimizer: Optimizer, rule: Rule, host: Host) -> None:
    states = cast("dict[object, Any]", optimizer.state)
    full: States | None = states.get(KEY)
    if full is None:
        return
    unused: list[str] = []
    for number, (group, param) in enumerate(_params(optimizer)):
        if (name := host.name_of(param)) is None or number not in full:
            continue
        kept = full.pop(number)
        if Storage.of(host.precision, param.dtype, rule.state_names(group)).plain:
            unused.append(name)
        elif param in optimizer.state:
            optimizer.state[param].update(kept)
    if not full:
        del states[KEY]
    if unused:
        warnings.warn(
            f"the loaded optimizer has states in full precision for {len(unused)} parameters, "
            f"{unused[0]} the first; they are cast, as torch does it, because neither "
            "master_weights nor state_dtype asks for them",
            stacklevel=2,
        )


def _drop_cast_master(
    name: str, state: dict[str, Any], storage: Storage, dropped: list[str]
) -> None:
    master = state.get(MASTER)
    if isinstance(master, Tensor) and storage.has_master and master.dtype != torch.float32:
        del state[MASTER]
        dropped.append(name)


def _convert(
    name: str,
    param: Tensor,
    state: dict[str, object],
    storage: Storage,
    host: Host,
) -> None:
    for kind in storage.own_kinds:
        value, dtype = state.get(kind), storage.dtype_of(kind)
        if not isinstance(value, Tensor) or value.dtype is dtype:
            continue
        if unused(state):  # made by torch in its own way; we begin it in ours
            del state[kind]
            continue
        if torch.uint8 in (value.dtype, dtype):
            raise ValueError(
                f"state_dtype={host.precision.states!r}: {kind} of {name} is {value.dtype}, which "
                f"cannot become {dtype}; if it was loaded, resume with the state_dtype of then; "
                "if a step made it before the model was called, or by a closure that was the "
                "first to call it, call the model once before the first step"
            )
        label = f"{name}:{kind}"
        shape, strides = storage.layout_of(kind, param)
        state[kind] = host.machine.homes.fresh(
            label, host.tier_of(label), dtype, shape, strides
        ).copy_(value)
