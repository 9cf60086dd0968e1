"""How one family of optimizers updates, for torch's kernels and for native ones.

Every update is torch's functional one, on pieces of the tensors and with the flags found in
the parameter group at that moment, so the arithmetic is torch's and so are the bits.  ``options``
says the same to the native kernels, which stand in where they give those bits: see ``native``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from zcompile.runtime.optim_formulas import Adagrad, Adam, Lion, RmsProp, Sgd

Options = Adam | Sgd | Adagrad | RmsProp | Lion
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
    """The same elements of all tensors of one parameter: flat, dense, mostly of one type.

    ``first`` says that the states have not been updated before; they are zeros.  An update
    may put other tensors in their place.  ``step`` is the scalar count of updates, which
    the update raises.  They begin at element ``start`` of a parameter of ``whole_numel``;
    ``None``: they are all of it.  ``out`` is the parameter itself where ``param`` is its
    master.  ``stream`` tells parameters apart for random numbers.
    """

    param: Tensor
    grad: Tensor
    states: dict[str, Tensor]
    first: bool
    step: Tensor | None = None
    start: int = 0
    whole_numel: int | None = None
    out: Tensor | None = None
    stream: int = 0


class Rule(Protocol):
    """How one family of optimizers updates."""

    counts_steps: ClassVar[bool]
    """Whether there is a state ``step``, one number for each parameter."""

    def state_names(self, group: Group) -> tuple[str, ...]:
        """Return the names of the states of parameter size."""
        ...

    def slots(self, group: Group) -> tuple[str | None, ...]:
        """Return the names of the states in the order of native kernels, ``None`` for gaps."""
        return self.state_names(group)

    def initial(self, defaults: Group, kind: str) -> float | None:
        """Return what a state begins as if torch makes it before the first step, else ``None``."""
        del defaults, kind
        return None

    def refuses_sparse(self, group: Group) -> bool:
        """Return whether torch refuses to step at all where a gradient is sparse."""
        del group
        return self.counts_steps

    def fused(self, group: Group) -> bool:
        """Return whether torch takes its fused kernels."""
        return bool(group.get("fused"))

    def refusal(self, group: Group, dtype: torch.dtype) -> str | None:
        """Return why torch's own step must update parameters of ``dtype``; mostly ``None``."""
        del dtype
        return flags_refusal(group)

    def tails_differ(self, group: Group, dtype: torch.dtype) -> bool:
        """Return whether scalar and vector code disagree: see ``chunks``."""
        ...

    def temporaries(self, group: Group, *, first: bool) -> int:
        """Return how many tensors of the size of an operand a call holds beside the operands."""
        ...

    def writes_grad(self, group: Group, scaling: Scaling) -> bool:
        """Return whether torch changes the gradients themselves: fused kernels unscale them."""
        return self.fused(group) and scaling.grad_scale is not None

    def run(self, group: Group, scaling: Scaling, operands: Sequence[Operands]) -> None:
        """Update ``operands`` in place; gradients are changed only if ``writes_grad``."""
        ...

    def options(self, group: Group, *, first: bool) -> Options | None:
        """Return the same update for native kernels, ``None`` if they cannot make it."""
        ...


def flags_refusal(group: Group) -> str | None:
    """Return which flag in ``group`` only torch's own step can honour, and why."""
    if group.get("differentiable"):
        return "differentiable=True records the update itself"
    if group.get("capturable"):
        return "capturable=True is for accelerators"
    return None


def plain_numbers(values: Iterable[Any], *, fused: bool) -> list[float] | None:
    """Return ``values`` as numbers, ``None`` if torch computes with one of them as a tensor.

    Fused kernels take a tensor's number; the other loops compute with the tensor, and round
    differently.
    """
    given = list(values)
    if not fused and not all(isinstance(each, int | float) for each in given):
        return None
    return [float(each) for each in given]
