"""Lion: the sign of a blend of gradient and momentum (Chen et al., arXiv 2302.06675).

torch has no Lion; this one is ours.  It works on any model, compiled or not, and where a
session manages the parameters it is updated as torch's optimizers are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from zcompile.optim.rule import HALF_TYPES, Group, Operands, Rule, Scaling, plain_numbers
from zcompile.runtime.optim_formulas import Lion as LionOptions


class Lion(Optimizer):
    """Lion: one state a parameter, and every element moves by the same amount.

    ``params`` are parameters or groups of them, as for every optimizer of torch.  Each step
    shrinks a parameter by ``lr * weight_decay`` of it and moves it by ``lr`` against the sign
    of ``betas[0] * exp_avg + (1 - betas[0]) * grad``; ``exp_avg`` then moves to the gradient by
    ``1 - betas[1]``.  Usual are a third to a tenth of AdamW's learning rate and as many times
    its weight decay.  Raises ``ValueError`` for values outside their ranges, and
    ``RuntimeError`` for gradients that are sparse or complex.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0, 1.0, 1.0]))
    >>> optimizer = Lion([weight], lr=0.5)
    >>> weight.grad = torch.tensor([3.0, -0.1, 0.0])
    >>> optimizer.step()
    >>> weight.tolist()
    [0.5, 1.5, 1.0]
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"lr={lr}: must not be negative")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas}: each must be at least 0 and less than 1")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay={weight_decay}: must not be negative")
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make one step; return the loss that ``closure`` gives, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(group, param, param.grad)
        return loss

    def _update(self, group: Group, param: Tensor, grad: Tensor) -> None:
        if grad.layout is not torch.strided or not param.is_floating_point():
            raise RuntimeError("Lion takes dense gradients of real parameters only")
        state = self.state[param]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        _lion(group, param, grad, state["exp_avg"])


def _lion(group: Group, param: Tensor, grad: Tensor, exp_avg: Tensor) -> None:
    lr, (beta1, beta2) = group["lr"], group["betas"]
    if group["maximize"]:
        grad = -grad
    if group["weight_decay"] != 0:
        param.mul_(1 - lr * group["weight_decay"])
    blend = exp_avg.mul(beta1).add_(grad, alpha=1 - beta1)
    exp_avg.mul_(beta2).add_(grad, alpha=1 - beta2)
    param.add_(blend.sign_(), alpha=-lr)


@dataclass(frozen=True, slots=True)
class LionRule(Rule):
    """Lion."""

    counts_steps: ClassVar[bool] = False

    def state_names(self, group: Group) -> tuple[str, ...]:
        del group
        return ("exp_avg",)

    def refuses_sparse(self, group: Group) -> bool:
        del group
        return True

    def tails_differ(self, group: Group, dtype: torch.dtype) -> bool:
        del group
        return dtype in HALF_TYPES

    def temporaries(self, group: Group, *, first: bool) -> int:
        del first
        return 2 if group["maximize"] else 1

    def run(self, group: Group, scaling: Scaling, operands: Sequence[Operands]) -> None:
        del scaling
        for each in operands:
            _lion(group, each.param, each.grad, each.states["exp_avg"])

    def options(self, group: Group, *, first: bool) -> LionOptions | None:
        del first
        values = group["lr"], *group["betas"], group["weight_decay"]
        numbers = plain_numbers(values, fused=False)
        if numbers is None:
            return None
        lr, beta1, beta2, weight_decay = numbers
        return LionOptions(lr, (beta1, beta2), weight_decay, bool(group["maximize"]))
