"""Optimizers as the tests of native updates see them: options, tensors, and bits to compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from zcompile.runtime.native_optim import Flag, Formula
from zcompile.runtime.optim_batch import Item
from zcompile.runtime.optim_formulas import Adagrad, Adam, Lion, RmsProp, Sgd

Options = Adam | Sgd | Adagrad | RmsProp | Lion
FLAGS = (False, True)
STEP = 5
"""The number of the update that tests make."""

SPECIAL = (
    *(0.0, -0.0, 1e-42, -1e-40, 1e-30, 3e38, -3e38, 1.1754944e-38),
    *(float("inf"), -float("inf"), float("nan")),
)


@dataclass(slots=True)
class State:
    """A parameter, its gradient, and all the states that some kind of update could have."""

    param: Tensor
    grad: Tensor
    states: list[Tensor]

    def clone(self) -> State:
        return State(self.param.clone(), self.grad.clone(), [each.clone() for each in self.states])

    def tensors(self) -> list[Tensor]:
        return [self.param, self.grad, *self.states]


def adams() -> Iterator[Adam]:
    for amsgrad, maximize, decay, decoupled, beta1 in product(
        FLAGS, FLAGS, (0.0, 0.013), FLAGS, (0.9, 0.3)
    ):
        yield Adam(1.37e-3, (beta1, 0.999), 1e-8, decay, decoupled, amsgrad, maximize)


def sgds() -> Iterator[Sgd]:
    moments = ((0.0, 0.0, False), (0.9, 0.0, False), (0.9, 0.1, False), (0.9, 0.0, True))
    for moment, maximize, decay, first in product(moments, FLAGS, (0.0, 0.013), FLAGS):
        momentum, dampening, nesterov = moment
        yield Sgd(1.37e-2, momentum, dampening, decay, nesterov, maximize, first)


def adagrads() -> Iterator[Adagrad]:
    for maximize, decay in product(FLAGS, (0.0, 0.013)):
        yield Adagrad(1.37e-2, 0.01, decay, 1e-10, maximize)


def rmsprops() -> Iterator[RmsProp]:
    for maximize, decay, momentum, centered, alpha in product(
        FLAGS, (0.0, 0.013), (0.0, 0.9), FLAGS, (0.99, 0.3)
    ):
        yield RmsProp(1.37e-2, alpha, 1e-8, decay, momentum, centered, maximize)


def lions() -> Iterator[Lion]:
    for maximize, decay in product(FLAGS, (0.0, 0.013)):
        yield Lion(1.37e-3, (0.9, 0.99), decay, maximize)


def all_options() -> Sequence[Options]:
    return (*adams(), *sgds(), *adagrads(), *rmsprops(), *lions())


def used(options: Options) -> tuple[bool, bool, bool]:
    """Return which of the three states an update has."""
    match options:
        case Adam():
            return True, True, options.amsgrad
        case Sgd():
            return options.momentum != 0, False, False
        case RmsProp():
            return True, options.centered, options.momentum > 0
        case Adagrad() | Lion():
            return True, False, False


def item(options: Options, state: State) -> Item:
    """Return ``state`` as an item for update number ``STEP``."""
    kept = [
        each if needed else None for each, needed in zip(state.states, used(options), strict=True)
    ]
    divisor = options.denom_divisor(STEP) if isinstance(options, Adam) else 1.0
    return Item(state.param, state.grad, kept, options.step_size(STEP), divisor)


def made(numel: int, seed: int, *, special: bool = False, offset: int = 0) -> State:
    """Return tensors of many magnitudes, ``special`` with the odd values of floating point.

    They begin ``offset`` elements into their memory.  Squares are positive.
    """
    random = torch.Generator().manual_seed(seed * 1000 + numel)

    def one() -> Tensor:
        size = torch.exp(torch.randn(numel, generator=random) * 4)
        values = torch.randn(numel, generator=random) * size
        if special:
            at = torch.rand(numel, generator=random) < 0.3
            which = torch.randint(0, len(SPECIAL), (numel,), generator=random)
            values = torch.where(at, torch.tensor(SPECIAL)[which], values)
        return torch.cat([torch.zeros(offset), values])[offset:]

    param = one()
    # Where the parameter is zero, the step is seen to its last bit.
    param[torch.rand(numel, generator=random) < 0.3] = 0.0
    return State(param, one(), [one().abs_(), one().abs_(), one().abs_()])


def different(one: Tensor, other: Tensor) -> int:
    """Return how many elements differ in a bit; every NaN is like every other."""
    if one.dtype is torch.float32:
        left, right = one.numpy(), other.numpy()
        unlike = left.view(np.uint32) != right.view(np.uint32)
        return int((unlike & ~(np.isnan(left) & np.isnan(right))).sum())
    return int((one.view(torch.uint8) != other.view(torch.uint8)).sum())


def with_flags(formula: Formula, flags: Flag) -> Formula:
    return replace(formula, flags=formula.flags | flags)
