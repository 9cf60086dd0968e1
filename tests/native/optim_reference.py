"""The updates in NumPy, one rounding at a time, independent of any compiled code of ours."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from zcompile.runtime.optim_formulas import Adagrad, Adam, Lion, RmsProp, Sgd

F32 = npt.NDArray[np.float32]
f32 = np.float32


def fused_multiply_add(a: F32 | np.float32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
    """Return a * b + c, rounded once.

    The product is exact in double precision.  The sum is rounded to odd there, so that rounding
    it again, to single precision, is the only rounding that counts.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = (total.view(np.int64) & 1) == 0
    inexact = np.isfinite(total) & np.isfinite(error) & (error != 0)
    towards = np.where(error > 0, np.inf, -np.inf)
    odd = np.where(inexact & even, np.nextafter(total, towards), total)
    return odd.astype(np.float32)


def quotient(above: F32, below: F32 | np.float32) -> F32:
    return np.asarray(above / below, np.float32)


def root(of: F32) -> F32:
    return np.asarray(np.sqrt(of), np.float32)


@dataclass(slots=True)
class Reference:
    """Updates arrays in place.  ``fma`` and ``one_sum`` are explained in ``core.h``."""

    param: F32
    grad: F32
    states: list[F32] = field(default_factory=list[F32])
    fma: bool = True
    one_sum: bool = False

    def step(self, options: Adam | Sgd | Adagrad | RmsProp | Lion, number: float) -> None:
        with np.errstate(all="ignore"):
            self._step(options, number)

    def _step(self, options: Adam | Sgd | Adagrad | RmsProp | Lion, number: float) -> None:
        if options.maximize:
            self.grad = -self.grad
        if options.weight_decay != 0 and not _decoupled(options):
            self.grad = self._madd(self.param, f32(options.weight_decay), self.grad)
        if options.weight_decay != 0 and _decoupled(options):
            shrunk = self.param * f32(1 - options.lr * options.weight_decay)
        else:
            shrunk = self.param
        size = f32(-options.step_size(number))
        match options:
            case Adam():
                self.param = self._adam(options, number, shrunk, size)
            case Sgd():
                self.param = self._sgd(options, size)
            case Adagrad():
                self.states[0] = self._madd(self.grad, self.grad, self.states[0])
                denom = root(self.states[0]) + f32(options.eps)
                self.param = self.param + quotient(size * self.grad, denom)
            case RmsProp():
                self.param = self._rmsprop(options, size)
            case Lion():
                self.param = self._lion(options, shrunk, size)

    def _adam(self, options: Adam, number: float, shrunk: F32, size: np.float32) -> F32:
        beta1, beta2 = options.betas
        self.states[0] = self._lerp(self.states[0], f32(1 - beta1))
        self.states[1] = self._squares(self.states[1], f32(beta2), f32(1 - beta2))
        largest = self.states[1]
        if options.amsgrad:
            if self.one_sum:
                largest = np.where(self.states[2] < largest, largest, self.states[2])
            else:
                largest = np.maximum(self.states[2], largest)
            self.states[2] = largest
        denom = quotient(root(largest), f32(options.denom_divisor(number))) + f32(options.eps)
        return shrunk + quotient(size * self.states[0], denom)

    def _sgd(self, options: Sgd, size: np.float32) -> F32:
        step = self.grad
        if options.momentum != 0:
            momentum, weight = f32(options.momentum), f32(1 - options.dampening)
            if options.first:
                moment = self.grad.copy()
            elif self.one_sum:
                moment = self._madd(self.states[0], momentum, self.grad * weight)
            else:
                moment = self._madd(self.grad, weight, self.states[0] * momentum)
            self.states[0] = moment
            step = self._madd(moment, momentum, self.grad) if options.nesterov else moment
        return self._madd(step, size, self.param)

    def _rmsprop(self, options: RmsProp, size: np.float32) -> F32:
        alpha, weight = f32(options.alpha), f32(1 - options.alpha)
        square = self._madd(weight * self.grad, self.grad, self.states[0] * alpha)
        self.states[0] = square
        if options.centered:
            mean = self.states[1] = self._lerp(self.states[1], weight)
            square = self._madd(-mean, mean, square)
        denom = root(square) + f32(options.eps)
        if options.momentum > 0:
            moment = self.states[2] * f32(options.momentum) + quotient(self.grad, denom)
            self.states[2] = moment
            return self._madd(moment, size, self.param)
        return self.param + quotient(size * self.grad, denom)

    def _lion(self, options: Lion, shrunk: F32, size: np.float32) -> F32:
        beta1, beta2 = options.betas
        blend = self._madd(self.grad, f32(1 - beta1), self.states[0] * f32(beta1))
        self.states[0] = self._madd(self.grad, f32(1 - beta2), self.states[0] * f32(beta2))
        sign = (blend > 0).astype(np.float32) - (blend < 0).astype(np.float32)
        return self._madd(sign, size, shrunk)

    def _madd(self, a: F32 | np.float32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
        return fused_multiply_add(a, b, c) if self.fma else np.asarray(a * b + c, np.float32)

    def _lerp(self, old: F32, weight: np.float32) -> F32:
        if abs(weight) < 0.5:
            return self._madd(weight, self.grad - old, old)
        return self._madd(weight - f32(1), self.grad - old, self.grad)

    def _squares(self, old: F32, decay: np.float32, weight: np.float32) -> F32:
        if self.one_sum:
            return self._madd(old, decay, weight * self.grad * self.grad)
        return self._madd(weight * self.grad, self.grad, old * decay)


def _decoupled(options: Adam | Sgd | Adagrad | RmsProp | Lion) -> bool:
    return isinstance(options, Lion) or (isinstance(options, Adam) and options.decoupled)
