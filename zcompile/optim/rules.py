"""The stock optimizers whose update we carry out, and how torch's own kernels are called.

Every update is torch's functional one, on pieces of the tensors and with the flags found in
the parameter group at that moment, so the arithmetic is torch's and so are the bits.  ``options``
says the same to the native kernels, which stand in where they give those bits: see ``native``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from zcompile.runtime.optim_formulas import Adam as AdamOptions
from zcompile.runtime.optim_formulas import Sgd as SgdOptions

Options = AdamOptions | SgdOptions
"""An update as the native kernels take it."""

Group = Mapping[str, Any]
"""One entry of an optimizer's ``param_groups``."""

HALF_TYPES = frozenset({torch.bfloat16, torch.float16})


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a ``GradScaler`` leaves on a fused optimizer for the time of one step."""

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    @classmethod
    def of(cls, optimizer: Optimizer) -> Scaling:
        return cls(getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None))

    @property
    def skips(self) -> bool:
        """Whether the kernels will change nothing, because a gradient is not finite."""
        return self.found_inf is not None and self.found_inf.item() == 1.0

    @property
    def used(self) -> bool:
        return self.grad_scale is not None or self.found_inf is not None


@dataclass(slots=True)
class Operands:
    """The same elements of all tensors of one parameter: flat, dense, of one type.

    ``first`` says that the states have not been updated before; they are zeros.  An update
    may put other tensors in their place.  ``step`` is the scalar count of updates, which
    the update raises.  They begin at element ``start`` of a parameter of ``whole_numel``;
    ``None``: they are all of it.
    """

    param: Tensor
    grad: Tensor
    states: dict[str, Tensor]
    first: bool
    step: Tensor | None = None
    start: int = 0
    whole_numel: int | None = None


class Rule(Protocol):
    """How one family of optimizers updates."""

    @property
    def counts_steps(self) -> bool:
        """Whether there is a state ``step``, one number for each parameter."""
        ...

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of the states of parameter size."""
        ...

    def fused(self, group: Group) -> bool:
        """Return whether torch takes its fused kernels."""
        ...

    def refusal(self, group: Group, dtype: torch.dtype) -> str | None:
        """Return why torch's own step must update parameters of ``dtype``; mostly ``None``."""
        ...

    def tails_differ(self, group: Group, dtype: torch.dtype) -> bool:
        """Return whether scalar and vector code disagree: see ``chunks``."""
        ...

    def temporaries(self, group: Group, *, first: bool) -> int:
        """Return how many tensors of the size of an operand a call holds beside the operands."""
        ...

    def writes_grad(self, group: Group, scaling: Scaling) -> bool:
        """Return whether torch changes the gradients themselves."""
        ...

    def run(self, group: Group, scaling: Scaling, operands: Sequence[Operands]) -> None:
        """Update ``operands`` in place; gradients are changed only if ``writes_grad``."""
        ...

    def options(self, group: Group, *, first: bool) -> Options | None:
        """Return the same update for native kernels, ``None`` if they cannot make it."""
        ...


@dataclass(frozen=True, slots=True)
class AdamRule:
    """Adam, AdamW, with or without AMSGrad."""

    counts_steps: bool = True

    def state_names(self, group: Group) -> tuple[str, ...]:
        names = ("exp_avg", "exp_avg_sq")
        return (*names, "max_exp_avg_sq") if group["amsgrad"] else names

    def fused(self, group: Group) -> bool:
        return bool(group["fused"])

    def refusal(self, group: Group, dtype: torch.dtype) -> str | None:
        del dtype
        if group["differentiable"]:
            return "differentiable=True records the update itself"
        if group["capturable"]:
            return "capturable=True is for accelerators"
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

    def writes_grad(self, group: Group, scaling: Scaling) -> bool:
        return self.fused(group) and scaling.grad_scale is not None

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
        lr, (beta1, beta2) = group["lr"], group["betas"]
        numbers = lr, beta1, beta2, group["eps"], group["weight_decay"]
        # Fused kernels take a tensor's number; the other loops compute with the tensor.
        if not self.fused(group) and not all(map(_is_number, numbers)):
            return None
        return AdamOptions(
            float(lr),
            (float(beta1), float(beta2)),
            float(group["eps"]),
            float(group["weight_decay"]),
            bool(group["decoupled_weight_decay"]),
            bool(group["amsgrad"]),
            bool(group["maximize"]),
        )


@dataclass(frozen=True, slots=True)
class SgdRule:
    """SGD, with or without momentum."""

    counts_steps: bool = False

    def state_names(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] != 0 else ()

    def fused(self, group: Group) -> bool:
        return bool(group["fused"]) and not group["foreach"]

    def refusal(self, group: Group, dtype: torch.dtype) -> str | None:
        if group["differentiable"]:
            return "differentiable=True records the update itself"
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
        lr, momentum = group["lr"], group["momentum"]
        numbers = lr, momentum, group["dampening"], group["weight_decay"]
        if not self.fused(group) and not all(map(_is_number, numbers)):
            return None
        return SgdOptions(
            float(lr),
            float(momentum),
            float(group["dampening"]),
            float(group["weight_decay"]),
            bool(group["nesterov"]),
            bool(group["maximize"]),
            first,
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


RULES: Mapping[type[Optimizer], Rule] = MappingProxyType(
    {Adam: AdamRule(), AdamW: AdamRule(), SGD: SgdRule()}
)
"""By exact type: a subclass may do anything in a ``step`` of its own."""


def rule_of(optimizer: Optimizer) -> Rule | None:
    """Return the rule of a stock optimizer, ``None`` for every other."""
    return RULES.get(type(optimizer))
