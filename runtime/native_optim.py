"""Fused optimizers in the native library: one pass over memory updates many tensors.

``Formula`` says what all tensors of a call share, ``Item`` what each of them brings along, and
``Optimizers.step`` updates them.  ``optim_formulas`` makes formulas from the usual options.
Docs: ``docs/native_optimizers.md``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from zcompile.runtime.native import Native
from zcompile.runtime.pool import Pool

BLOCK = 256
"""Elements of an 8-bit state that share a scale; also where such tensors may be cut."""

MAX_STATES = 3
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


class _Type(IntEnum):
    NONE = 0
    FP32 = 1
    BF16 = 2
    FP16 = 3
    Q8 = 4


_TYPES = {
    torch.float32: _Type.FP32,
    torch.bfloat16: _Type.BF16,
    torch.float16: _Type.FP16,
    torch.uint8: _Type.Q8,
}


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


@dataclass(slots=True)
class Item:
    """One tensor, or a piece of one: flat, dense tensors of ``param.numel()`` elements.

    ``states`` are in the order of ``zinf_optim.h``; ``None`` where the kind has a gap.  A state
    of ``uint8`` holds codes; its ``scales`` has one fp32 number for each ``BLOCK`` of them.
    ``out`` receives the parameter in its own, shorter type; with ``Flag.FOLLOW`` the parameter
    first takes each element of ``out`` that is not its own, rounded.  ``first`` is the index of
    the first element within the whole tensor, ``whole_vectors`` how many elements here come
    before those that torch's fused kernels compute in their scalar loop, ``None`` for all.
    ``stream`` tells tensors apart for the random numbers.
    """

    param: Tensor
    grad: Tensor
    states: Sequence[Tensor | None] = ()
    step_size: float = 0.0
    denom_divisor: float = 1.0
    scales: Sequence[Tensor | None] = ()
    out: Tensor | None = None
    first: int = 0
    whole_vectors: int | None = None
    stream: int = 0


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


ROW = np.dtype(
    [
        ("param", "u8"),
        ("grad", "u8"),
        ("state", "u8", (MAX_STATES,)),
        ("scale", "u8", (MAX_STATES,)),
        ("out", "u8"),
        ("numel", "i8"),
        ("first", "i8"),
        ("whole_vectors", "i8"),
        ("stream", "u4"),
        ("step_size", "f4"),
        ("denom_divisor", "f4"),
        ("reserved", "u4"),
    ]
)
"""``zinf_optim_tensor``."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors as the library takes them; keeps them alive.  Good for any number of calls."""

    rows: npt.NDArray[Any]
    types: tuple[_Type, _Type, tuple[_Type, ...], _Type]
    items: tuple[Item, ...] = field(repr=False)

    def set_step_sizes(self, step_sizes: Sequence[float], divisors: Sequence[float]) -> None:
        """Give each tensor its step size and the divisor of its denominator."""
        self.rows["step_size"] = step_sizes
        self.rows["denom_divisor"] = divisors


def batch(items: Sequence[Item]) -> Batch:
    """Check ``items``, all of the same types, and write down where they are.

    Raises ``ValueError`` for tensors that the kernels cannot work on.
    """
    if not items:
        raise ValueError("items is empty: give at least one tensor to update")
    types = _types_of(items[0])
    num_states = len(types[2])
    if any(len(item.states) != num_states for item in items):
        raise ValueError("the items of one call differ in their states: make a call for each")
    rows = np.zeros(len(items), ROW)
    numels = [item.param.numel() for item in items]
    rows["numel"] = numels
    rows["param"] = _column([item.param for item in items], numels)
    rows["grad"] = _column([item.grad for item in items], numels)
    rows["out"] = _column([item.out for item in items], numels)
    for slot in range(num_states):
        rows["state"][:, slot] = _column([item.states[slot] for item in items], numels)
        if types[2][slot] is _Type.Q8:
            rows["scale"][:, slot] = [_scale(item, slot) for item in items]
    rows["first"] = [item.first for item in items]
    rows["whole_vectors"] = [
        numel if item.whole_vectors is None else item.whole_vectors
        for item, numel in zip(items, numels, strict=True)
    ]
    rows["stream"] = [item.stream for item in items]
    rows["step_size"] = [item.step_size for item in items]
    rows["denom_divisor"] = [item.denom_divisor for item in items]
    return Batch(rows, types, tuple(items))


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
        call = call_of(formula, of, isa)
        handle = None if pool is None else pool.handle
        address = of.rows.ctypes.data
        return self._native.check(self._step(call, address, len(of.rows), handle)) == 0

    def square_sums(
        self, of: Batch, pool: Pool | None = None, *, isa: int = BEST_ISA
    ) -> npt.NDArray[np.float64]:
        """Return the sum of squares of each gradient in ``of``, whatever the threads."""
        sums = np.empty(len(of.rows))
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


def _type_of(tensor: Tensor | None) -> _Type:
    return _Type.NONE if tensor is None else _TYPES.get(tensor.dtype, _Type.NONE)


def _types_of(item: Item) -> tuple[_Type, _Type, tuple[_Type, ...], _Type]:
    states = tuple(_type_of(state) for state in item.states)
    return _type_of(item.param), _type_of(item.grad), states, _type_of(item.out)


def _column(tensors: Sequence[Tensor | None], numels: Sequence[int]) -> list[int]:
    """Return the addresses of one tensor of each item; ``None`` is 0.

    Raises ``ValueError`` unless all lie flat in ordinary memory and are of one type.
    """
    there = [tensor for tensor in tensors if tensor is not None]
    if not there:
        return [0] * len(tensors)
    dtypes = {tensor.dtype for tensor in there}
    if len(there) != len(tensors) or len(dtypes) != 1:
        raise ValueError("the items of one call differ in their types: make a call for each")
    flat = all(tensor.is_cpu and tensor.is_contiguous() for tensor in there)
    if not flat or not dtypes <= _TYPES.keys() or [each.numel() for each in there] != numels:
        for tensor, numel in zip(there, numels, strict=True):
            _check(tensor, numel)
    return [tensor.data_ptr() for tensor in there]


def _check(tensor: Tensor, numel: int) -> None:
    lies_flat = tensor.is_cpu and tensor.is_contiguous() and tensor.numel() == numel
    if not lies_flat or tensor.dtype not in _TYPES:
        raise ValueError(
            f"a tensor of {tensor.dtype}, shape {tuple(tensor.shape)} on {tensor.device}: give "
            f"contiguous tensors of {numel} elements in fp32, bf16, fp16 (or uint8 for a state) "
            "on the cpu"
        )


def _scale(item: Item, slot: int) -> int:
    """Return the address of the scales of a state in 8 bits."""
    scale = item.scales[slot] if slot < len(item.scales) else None
    if (
        scale is None
        or scale.dtype is not torch.float32
        or not scale.is_contiguous()
        or scale.numel() * BLOCK < item.param.numel()
    ):
        raise ValueError(
            f"state {slot} is in 8 bits: its scales need one fp32 number for each {BLOCK} elements"
        )
    return scale.data_ptr()
