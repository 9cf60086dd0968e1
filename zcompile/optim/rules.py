"""The optimizers whose update we carry out, and how torch's own kernels are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from zcompile.optim.lion import Lion, LionRule
from zcompile.optim.rule import (
    HALF_TYPES,
    Group,
    Operands,
    Rule,
    Scaling,
    flags_refusal,
    plain_numbers,
)
from zcompile.optim.square_rules import AdagradRule, RmsPropRule
from zcompile.runtime.optim_formulas import Adam as AdamOptions
from zcompile.runtime.optim_formulas import Sgd as SgdOptions


@dataclass(frozen=True, slots=True)
class AdamRule(Rule):
    """Adam, AdamW, with or without AMSGrad."""

    counts_steps: ClassVar[bool] = True

    def state_names(self, group: Group) -> tuple[str, ...]:
        names = ("exp_avg", "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if group["amsgrad"] else names

    def refusal(self, group: Group, dtype: torch.dtype) -> str | None:
        del dtype
        if refusal := flags_refusal(group):
            return refusal
        if group["foreach"] and isinstance(group["lr"], Tensor):
            return "foreach=True does not go with a tensor as learning rate"
        return None

    def tails_differ(self, group: Group, dtype: torch.dtype) -> bool:
        return dtype in HALF_TYPES and not self.fused(group) and self._penalty(group)

    def temporaries(self, group: Group, *, first: bool) -> int:
        del first
        if self.fused(group):
            return 0
        return 3 if group["maximize"] or self._penalty(group) else 2

    def _penalty(self, group: Group) -> bool:
        """Return whether weight decay is added to the gradient."""
        return bool(group["weight_decay"] != 0) and not group["decoupled_weight_decay"]

    def run(self, group: Group, scaling: Scaling, operands: Sequence[Operands]) -> None:
        beta1, beta2 = group["betas"]
        adam(
            [each.param for each in operands],
            [each.grad for each in operands],
            [each.states["exp_avg"] for each in operands],
            [each.states["exp_avg_sq"] for each in operands],
            [each.states["max_exp_avg_sq"] for each in operands] if group["amsgrad"] else [],
            [each.step for each in operands if each.step is not None],
            foreach=group["foreach"],
            fused=group["fused"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            grad_scale=scaling.grad_scale,
            found_inf=scaling.found_inf,
            decoupled_weight_decay=group["decoupled_weight_decay"],
            amsgrad=group["amsgrad"],
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    def options(self, group: Group, *, first: bool) -> AdamOptions | None:
        del first
        values = group["lr"], *group["betas"], group["eps"], group["weight_decay"]
        numbers = plain_numbers(values, fused=self.fused(group))
        if numbers is None:
            return None
        lr, beta1, beta2, eps, weight_decay = numbers
        return AdamOptions(
            lr,
            (beta1, beta2),
            eps,
            weight_decay,
            bool(group["decoupled_weight_decay"]),
            bool(group["amsgrad"]),
            bool(group["maximize"]),
        )


@dataclass(frozen=True, slots=True)
class SgdRule(Rule):
    """SGD, with or without momentum."""

    counts_steps: ClassVar[bool] = False

    def state_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] != 0 else ()

    def fused(self, group: Group) -> bool:
        return bool(group["fused"]) and not group["foreach"]

    def refusal(self, group: Group, dtype: torch.dtype) -> str | None:
        if refusal := flags_refusal(group):
            return refusal
        if self.fused(group) and group["momentum"] != 0 and dtype in HALF_TYPES:
            # torch 2.13 reads up to eight bytes past the end of the momentum and computes
            # the last elements with them: the bits depend on what happens to lie there.
            return f"fused SGD with momentum reads past the end of {dtype} tensors"
        return None

    def tails_differ(self, group: Group, dtype: torch.dtype) -> bool:
        return dtype in HALF_TYPES and not self.fused(group)

    def temporaries(self, group: Group, *, first: bool) -> int:
        new_buffer = 1 if first and group["momentum"] != 0 else 0
        changed = group["maximize"] or group["weight_decay"] != 0 or group["nesterov"]
        return new_buffer + (2 if changed and not self.fused(group) else 0)

    def writes_grad(self, group: Group, scaling: Scaling) -> bool:
        if self.fused(group):
            return scaling.grad_scale is not None
        # The foreach form adds the momentum to the gradients where it has no copy of them.
        copied = group["maximize"] or group["weight_decay"] != 0
        return bool(group["foreach"] and group["nesterov"] and not copied)

    def run(self, group: Group, scaling: Scaling, operands: Sequence[Operands]) -> None:
        # The first buffer is not zeros: torch makes it, from the gradient.
        buffers = [None if each.first else each.states.get("momentum_buffer") for each in operands]
        sgd(
            [each.param for each in operands],
            [each.grad for each in operands],
            buffers,
            foreach=group["foreach"],
            fused=group["fused"],
            grad_scale=scaling.grad_scale,
            found_inf=scaling.found_inf,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
        )
        for each, buffer in zip(operands, buffers, strict=True):
            if buffer is not None:
                each.states["momentum_buffer"] = buffer

    def options(self, group: Group, *, first: bool) -> SgdOptions | None:
        names = ("lr", "momentum", "dampening", "weight_decay")
        numbers = plain_numbers((group[name] for name in names), fused=self.fused(group))
        if numbers is None:
            return None
        lr, momentum, dampening, weight_decay = numbers
        nesterov, maximize = bool(group["nesterov"]), bool(group["maximize"])
        return SgdOptions(lr, momentum, dampening, weight_decay, nesterov, maximize, first)


RULES: Mapping[type[Optimizer], Rule] = MappingProxyType(
    {
        Adam: AdamRule(),
        AdamW: AdamRule(),
        SGD: SgdRule(),
        Adagrad: AdagradRule(),
        RMSprop: RmsPropRule(),
        Lion: LionRule(),
    }
)
"""By exact type: a subclass may do anything in a ``step`` of its own."""


def rule_of(optimizer: Optimizer) -> Rule | None:
    """Return the rule of an optimizer that we update, ``None`` for every other."""
    return RULES.get(type(optimizer))
