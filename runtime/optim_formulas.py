"""Formulas of the native optimizers from the options that users know.

Everything is computed in double precision and in the order of torch's Python code, then rounded
once, as ATen rounds the scalars that it is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from zcompile.runtime.native_optim import Flag, Formula, Kind


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam, or AdamW with ``decoupled``."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    amsgrad: bool = False
    maximize: bool = False

    def formula(self) -> Formula:
        beta1, beta2 = self.betas
        return Formula(
            Kind.ADAM,
            _flags(self.maximize, self.weight_decay, self.decoupled)
            | (Flag.AMSGRAD if self.amsgrad else Flag.NONE),
            weight_decay=self.weight_decay,
            decay=1 - self.lr * self.weight_decay,
            weight1=1 - beta1,
            beta2=beta2,
            weight2=1 - beta2,
            eps=self.eps,
        )

    def step_size(self, step: float) -> float:
        """Return the size of update number ``step``, counted from 1."""
        bias_correction: float = 1 - self.betas[0] ** step
        return self.lr / bias_correction

    def denom_divisor(self, step: float, *, fused: bool = False) -> float:
        """Return what roots are divided by; torch's fused kernels take its root otherwise."""
        bias_correction: float = 1 - self.betas[1] ** step
        root: float = bias_correction**0.5
        return math.sqrt(bias_correction) if fused else root


@dataclass(frozen=True, slots=True)
class Sgd:
    """SGD; ``first`` says that the momentum does not exist yet."""

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    first: bool = False

    def formula(self) -> Formula:
        flags = _flags(self.maximize, self.weight_decay)
        if self.momentum != 0:
            flags |= Flag.MOMENTUM
            flags |= Flag.NESTEROV if self.nesterov else Flag.NONE
            flags |= Flag.FIRST if self.first else Flag.NONE
        return Formula(
            Kind.SGD,
            flags,
            weight_decay=self.weight_decay,
            weight1=1 - self.dampening,
            momentum=self.momentum,
        )

    def step_size(self, step: float) -> float:
        del step
        return self.lr


@dataclass(frozen=True, slots=True)
class Adagrad:
    """Adagrad."""

    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    eps: float = 1e-10
    maximize: bool = False

    def formula(self) -> Formula:
        flags = _flags(self.maximize, self.weight_decay)
        return Formula(Kind.ADAGRAD, flags, weight_decay=self.weight_decay, eps=self.eps)

    def step_size(self, step: float) -> float:
        """Return the decayed learning rate of update number ``step``, counted from 1."""
        return self.lr / (1 + (step - 1) * self.lr_decay)


@dataclass(frozen=True, slots=True)
class RmsProp:
    """RMSprop."""

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    maximize: bool = False

    def formula(self) -> Formula:
        flags = _flags(self.maximize, self.weight_decay)
        flags |= Flag.CENTERED if self.centered else Flag.NONE
        flags |= Flag.MOMENTUM if self.momentum > 0 else Flag.NONE
        return Formula(
            Kind.RMSPROP,
            flags,
            weight_decay=self.weight_decay,
            weight1=1 - self.alpha,
            beta2=self.alpha,
            weight2=1 - self.alpha,
            momentum=self.momentum,
            eps=self.eps,
        )

    def step_size(self, step: float) -> float:
        del step
        return self.lr


@dataclass(frozen=True, slots=True)
class Lion:
    """Lion (Chen et al.: Symbolic discovery of optimization algorithms; arXiv 2302.06675)."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    maximize: bool = False

    def formula(self) -> Formula:
        beta1, beta2 = self.betas
        return Formula(
            Kind.LION,
            _flags(self.maximize, self.weight_decay, decoupled=True),
            decay=1 - self.lr * self.weight_decay,
            weight1=1 - beta1,
            beta1=beta1,
            beta2=beta2,
            weight2=1 - beta2,
        )

    def step_size(self, step: float) -> float:
        del step
        return self.lr


def _flags(maximize: bool, weight_decay: float, decoupled: bool = False) -> Flag:
    flags = Flag.MAXIMIZE if maximize else Flag.NONE
    if weight_decay != 0:
        flags |= Flag.DECAY if decoupled else Flag.PENALTY
    return flags
