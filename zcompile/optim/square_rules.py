"""Adagrad and RMSprop: steps divided by the root of squares that add up, or are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.optim.adagrad import adagrad
from torch.optim.rmsprop import rmsprop

from zcompile.optim.rule import HALF_TYPES, Group, Operands, Rule, Scaling, plain_numbers
from zcompile.runtime.optim_formulas import Adagrad as AdagradOptions
from zcompile.runtime.optim_formulas import RmsProp as RmsPropOptions


@dataclass(frozen=True, slots=True)
class AdagradRule(Rule):
    """Adagrad."""

    counts_steps: ClassVar[bool] = True

    def state_names(self, group: Group) -> tuple[str, ...]:
        del group
        return ("sum",)

    def initial(self, defaults: Group, kind: str) -> float | None:
        del kind
        return float(defaults["initial_accumulator_value"])

    def refuses_sparse(self, group: Group) -> bool:
        return self.fused(group) or group["weight_decay"] != 0

    def tails_differ(self, group: Group, dtype: torch.dtype) -> bool:
        return dtype in HALF_TYPES and not self.fused(group) and group["weight_decay"] != 0

    def temporaries(self, group: Group, *, first: bool) -> int:
        del first
        if self.fused(group):
            return 0
        changed = group["maximize"] or group["weight_decay"] != 0
        return 2 if changed or group["foreach"] else 1

    def run(self, group: Group, scaling: Scaling, operands: Sequence[Operands]) -> None:
        adagrad(
            [each.param for each in operands],
            [each.grad for each in operands],
            [each.states["sum"] for each in operands],
            [each.step for each in operands if each.step is not None],
            fused=group["fused"],
            grad_scale=scaling.grad_scale,
            found_inf=scaling.found_inf,
            foreach=group["foreach"],
            differentiable=group["differentiable"],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            lr_decay=group["lr_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )

    def options(self, group: Group, *, first: bool) -> AdagradOptions | None:
        del first
        names = ("lr", "lr_decay", "eps", "weight_decay")
        numbers = plain_numbers((group[name] for name in names), fused=self.fused(group))
        if numbers is None:
            return None
        lr, lr_decay, eps, weight_decay = numbers
        return AdagradOptions(lr, lr_decay, weight_decay, eps, bool(group["maximize"]))


@dataclass(frozen=True, slots=True)
class RmsPropRule(Rule):
    """RMSprop, centered or not, with or without momentum."""

    counts_steps: ClassVar[bool] = True

    def state_names(self, group: Group) -> tuple[str, ...]:
        momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
        return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))

    def slots(self, group: Group) -> tuple[str | None, ...]:
        return (
            "square_avg",
            "grad_avg" if group["centered"] else None,
            "momentum_buffer" if group["momentum"] > 0 else None,
        )

    def tails_differ(self, group: Group, dtype: torch.dtype) -> bool:
        return dtype in HALF_TYPES and (group["weight_decay"] != 0 or group["momentum"] > 0)

    def temporaries(self, group: Group, *, first: bool) -> int:
        del first
        return 2 if group["maximize"] or group["weight_decay"] != 0 else 1

    def run(self, group: Group, scaling: Scaling, operands: Sequence[Operands]) -> None:
        del scaling
        centered, momentum = group["centered"], group["momentum"]
        rmsprop(
            [each.param for each in operands],
            [each.grad for each in operands],
            [each.states["square_avg"] for each in operands],
            [each.states["grad_avg"] for each in operands] if centered else [],
            [each.states["momentum_buffer"] for each in operands] if momentum > 0 else [],
            [each.step for each in operands if each.step is not None],
            foreach=group["foreach"],
            maximize=group["maximize"],
            differentiable=group["differentiable"],
            capturable=group["capturable"],
            lr=group["lr"],
            alpha=group["alpha"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            momentum=momentum,
            centered=centered,
        )

    def options(self, group: Group, *, first: bool) -> RmsPropOptions | None:
        del first
        names = ("lr", "alpha", "eps", "weight_decay", "momentum")
        numbers = plain_numbers((group[name] for name in names), fused=False)
        if numbers is None:
            return None
        lr, alpha, eps, weight_decay, momentum = numbers
        return RmsPropOptions(
            lr,
            alpha,
            eps,
            weight_decay,
            momentum,
            bool(group["centered"]),
            bool(group["maximize"]),
        )
