"""Which updates the native kernels make in this process, and which torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from zcompile.doctor.finding import Finding, Section
from zcompile.optim.lion import Lion
from zcompile.optim.native import NativeKernels
from zcompile.optim.rule import Scaling
from zcompile.optim.rules import rule_of

_OPTIMIZERS = Section("optimizers")
_Flags = Mapping[str, Any]
_FOR_EACH: _Flags = {"foreach": True}
_FUSED: _Flags = {"fused": True}
_USUAL: tuple[_Flags, ...] = ({}, {"weight_decay": 0.01}, {"maximize": True})


@dataclass(frozen=True, slots=True)
class Family:
    """How an optimizer is made, which loops torch has for it, and flags to try with each loop."""

    make: Callable[..., Optimizer]
    loops: Sequence[_Flags]
    flags: Sequence[_Flags]

    def tried(self) -> Iterator[_Flags]:
        for loop, own in product(self.loops, self.flags):
            yield {**own, **loop}


_PLAIN: _Flags = {}
_ALL: tuple[_Flags, ...] = (_PLAIN, _FOR_EACH, _FUSED)
_NESTEROV: _Flags = {"momentum": 0.9, "nesterov": True}

FAMILIES: Mapping[str, Family] = {
    "Adam": Family(Adam, _ALL, (*_USUAL, {"amsgrad": True})),
    "AdamW": Family(AdamW, _ALL, (*_USUAL, {"amsgrad": True})),
    "SGD": Family(
        SGD, _ALL, (*_USUAL, {"momentum": 0.9}, _NESTEROV, {**_NESTEROV, "weight_decay": 0.01})
    ),
    "Adagrad": Family(Adagrad, _ALL, _USUAL),
    "RMSprop": Family(
        RMSprop, (_PLAIN, _FOR_EACH), (*_USUAL, {"momentum": 0.9}, {"centered": True})
    ),
    "Lion": Family(Lion, (_PLAIN,), _USUAL),
}
"""By name, what is updated by managed updates."""


@dataclass(frozen=True, slots=True)
class Combination:
    """Flags of an optimizer, and whether the native kernels have the bits of torch's for them.

    ``expected``: where they have not, it is because torch writes into the gradients.
    """

    flags: Mapping[str, Any]
    native: bool
    expected: bool

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.flags.items()) or "defaults"


def optimizer_findings() -> tuple[Finding, ...]:
    """Try every combination of flags on a sample; none changes a number, only the speed."""
    kernels = NativeKernels.load()
    if kernels is None:
        says = "torch's own kernels make every update: there is no native library"
        return (_OPTIMIZERS.note("kernels", says, "see the native library"),)
    return tuple(
        family_finding(name, list(combinations(kernels, family)))
        for name, family in FAMILIES.items()
    )


def combinations(kernels: NativeKernels, family: Family) -> Iterator[Combination]:
    """Yield every combination of ``family``, on fp32 parameters."""
    for given in family.tried():
        optimizer = family.make([Parameter(torch.zeros(1, device="cpu"))], **given)
        rule, (group,) = rule_of(optimizer), optimizer.param_groups
        assert rule is not None
        found = [
            kernels.arithmetic(rule, group, Scaling(), torch.float32, first=first)
            for first in (False, True)
        ]
        expected = rule.writes_grad(group, Scaling())
        yield Combination(given, None not in found, expected)


def family_finding(name: str, tried: Sequence[Combination]) -> Finding:
    """Say how many of the combinations of one optimizer are native, and which are not."""
    native = [each for each in tried if each.native]
    says = f"native kernels have torch's bits for {len(native)} of {len(tried)} combinations"
    left = "; ".join(str(each) for each in tried if not each.native)
    if not left:
        return _OPTIMIZERS.ok(name, f"{says} of flags, in fp32")
    says = f"{says}; torch's own kernels update {left}"
    if all(each.native or each.expected for each in tried):
        return _OPTIMIZERS.ok(name, says)
    return _OPTIMIZERS.warning(
        name, says, "nothing is wrong, only slower: report it with the versions above"
    )
