"""Fused optimizers in the native library: one pass over memory updates many tensors.

``Formula`` says what all tensors of a call share, ``optim_batch.Item`` what each of them brings
along, and ``Optimizers.step`` updates them.  ``optim_formulas`` makes formulas from the usual
options.
Docs: ``docs/native_optimizers.md``.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from zcompile.runtime.native import Native
from zcompile.runtime.optim_batch import BLOCK, MAX_STATES, Batch
from zcompile.runtime.pool import Pool

BEST_ISA = -1


class Kind(IntEnum):
    """Whose update it is."""

    ADAM = 0
    SGD = 1
    ADAGRAD = 2
    RMSPROP = 3
    LION = 4


class Flag(IntFlag):
    """What differs within one kind; ``zinf_optim.h`` explains each."""

    NONE = 0
    AMSGRAD = 1
    MAXIMIZE = 2
    NESTEROV = 4
    CENTERED = 8
    PENALTY = 16
    DECAY = 32
    FIRST = 64
    MOMENTUM = 128
    CHECK_FINITE = 256
    STOCHASTIC = 512
    ROUND_TWICE = 1024
    FOLLOW = 2048


@dataclass(frozen=True, slots=True)
class Roots:
    """A function that computes square roots as MKL's ``vmsSqrt`` does, and its last argument.

    ``set_threads`` is the address of what says how many threads it may use for the calling one,
    as ``MKL_Set_Num_Threads_Local`` does; 0 where it uses none.
    """

    address: int
    mode: int
    set_threads: int = 0


@dataclass(frozen=True, slots=True)
class Formula:
    """What all tensors of a call share: the update, and its numbers as the kernels take them.

    ``roots`` is where square roots come from, ``None`` for the processor's, which are rounded
    correctly.  ``seed`` and ``step`` make the random numbers of stochastic rounding.
    """

    kind: Kind
    flags: Flag = Flag.NONE
    grad_divisor: float = 1.0
    grad_factor: float = 1.0
    clip_factor: float = 1.0
    weight_decay: float = 0.0
    decay: float = 1.0
    weight1: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    weight2: float = 0.0
    momentum: float = 0.0
    eps: float = 0.0
    seed: int = 0
    step: int = 0
    roots: Roots | None = None

    def with_flags(self, flags: Flag) -> Formula:
        """Return this formula with ``flags`` besides its own."""
        return replace(self, flags=self.flags | flags)


class _Call(ctypes.Structure):
    """``zinf_optim_call``."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("isa", ctypes.c_int32),
        ("param_type", ctypes.c_int32),
        ("grad_type", ctypes.c_int32),
        ("state_type", ctypes.c_int32 * MAX_STATES),
        ("out_type", ctypes.c_int32),
        ("grad_divisor", ctypes.c_float),
        ("grad_factor", ctypes.c_float),
        ("clip_factor", ctypes.c_float),
        ("weight_decay", ctypes.c_float),
        ("decay", ctypes.c_float),
        ("weight1", ctypes.c_float),
        ("beta1", ctypes.c_float),
        ("beta2", ctypes.c_float),
        ("weight2", ctypes.c_float),
        ("momentum", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("seed", ctypes.c_uint64),
        ("step", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("roots", ctypes.c_void_p),
        ("roots_mode", ctypes.c_int64),
        ("set_roots_threads", ctypes.c_void_p),
    )


class Optimizers:
    """The fused optimizers of one loaded library."""

    def __init__(self, native: Native) -> None:
        self._native = native
        arguments = [ctypes.POINTER(_Call), ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
        self._step = native.function("zinf_optim_step", arguments)
        self._square_sums = native.function("zinf_optim_square_sums", [*arguments, ctypes.c_void_p])

    def step(
        self, formula: Formula, of: Batch, pool: Pool | None = None, *, isa: int = BEST_ISA
    ) -> bool:
        """Update everything in ``of``; return whether that was done.

        It is not, and nothing is changed, if ``Flag.CHECK_FINITE`` is set and a gradient is not
        finite.  ``isa`` picks kernels, as ``Native.isas`` numbers them.  Raises ``NativeError``
        if states and flags do not fit together.
        """
        of.read_again()
        call = call_of(formula, of, isa)
        handle = None if pool is None else pool.handle
        address = of.rows.ctypes.data
        return self._native.check(self._step(call, address, len(of.rows), handle)) == 0

    def square_sums(
        self, of: Batch, pool: Pool | None = None, *, isa: int = BEST_ISA
    ) -> npt.NDArray[np.float64]:
        """Return the sum of squares of each gradient in ``of``, whatever the threads."""
        sums = np.empty(len(of.rows))
        of.read_again()
        call = call_of(Formula(Kind.SGD), of, isa)
        handle = None if pool is None else pool.handle
        address = of.rows.ctypes.data
        self._native.check(self._square_sums(call, address, len(of.rows), handle, sums.ctypes.data))
        return sums


def new_state(numel: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return a state of zeros and, for ``torch.uint8``, its scales."""
    state = torch.zeros(numel, dtype=dtype, device="cpu")
    return state, torch.zeros(
        -(-numel // BLOCK), dtype=torch.float32, device="cpu"
    ) if dtype is torch.uint8 else None


def call_of(formula: Formula, of: Batch, isa: int = BEST_ISA) -> _Call:
    """Return what all tensors of a call share, as the library takes it."""
    param_type, grad_type, state_types, out_type = of.types
    call = _Call(formula.kind, formula.flags, isa, param_type, grad_type)
    for slot, state_type in enumerate(state_types):
        call.state_type[slot] = state_type
    call.out_type = out_type
    for name in (
        *("grad_divisor", "grad_factor", "clip_factor", "weight_decay", "decay", "weight1"),
        *("beta1", "beta2", "weight2", "momentum", "eps", "seed", "step"),
    ):
        setattr(call, name, getattr(formula, name))
    if formula.roots is not None:
        call.roots, call.roots_mode = formula.roots.address, formula.roots.mode
        call.set_roots_threads = formula.roots.set_threads or None
    return call
