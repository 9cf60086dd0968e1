"""Tensors as the native optimizers take them: written down many at a time, read anew at each call.

``batch`` makes of ``Item``s what ``native_optim.Optimizers`` updates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from zcompile.runtime.tensor_places import ElementType, PlacedRows, Places, objects_of, places

BLOCK = 256
"""Elements of an 8-bit state that share a scale; also where such tensors may be cut."""

MAX_STATES = 3


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


_PARAM, _GRAD, _STATE = 0, 1, 2
_SCALE = _STATE + MAX_STATES
_OUT = _SCALE + MAX_STATES
"""The words of a row that addresses go to; states and scales have several."""

_TENSORS = attrgetter("param", "grad", "out", "states", "scales")
_NUMBERS = attrgetter("first", "stream", "step_size", "denom_divisor", "whole_vectors")

_DIFFER = "the items of one call differ in their {}: make a call for each"

Types = tuple[ElementType, ElementType, tuple[ElementType, ...], ElementType]
"""Of parameters, gradients, states and copies of parameters."""

Columns = Mapping[int, Sequence[Tensor]]
"""One tensor of each item, by the word that gets its address; parameters come first."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors as the library takes them; keeps them alive.  Good for any number of calls.

    ``rows`` say where they were when last read.  Each call reads that anew, since nothing may be
    written to where a tensor has been.
    """

    rows: npt.NDArray[Any]
    types: Types
    _placed: PlacedRows = field(repr=False)

    def set_step_sizes(self, step_sizes: Sequence[float], divisors: Sequence[float]) -> None:
        """Give each tensor its step size and the divisor of its denominator."""
        self.rows["step_size"] = step_sizes
        self.rows["denom_divisor"] = divisors

    def read_again(self) -> None:
        """Have ``rows`` say where the tensors are now.

        Raises ``ValueError`` if one has another size, layout or type than when this was made.
        """
        self._placed.read_again()


def batch(items: Sequence[Item]) -> Batch:
    """Check ``items``, all of the same types, and write down where they are.

    Raises ``ValueError`` for tensors that the kernels cannot work on.
    """
    if not items:
        raise ValueError("items is empty: give at least one tensor to update")
    num_states = len(items[0].states)
    columns = _columns(items, num_states)
    tensors = objects_of(chain.from_iterable(columns.values()), len(columns) * len(items))
    found = places(tensors)
    types = _types(columns, found, num_states)
    rows = np.zeros(len(items), ROW)
    numels = found.numels[: len(items)].tolist()
    first, stream, step_sizes, divisors, whole = zip(*map(_NUMBERS, items), strict=True)
    rows["numel"], rows["first"], rows["stream"] = numels, first, stream
    rows["whole_vectors"] = [
        numel if each is None else each for each, numel in zip(whole, numels, strict=True)
    ]
    made = Batch(rows, types, PlacedRows(rows, list(columns), tensors, found))
    made.set_step_sizes(step_sizes, divisors)
    return made


def _columns(items: Sequence[Item], num_states: int) -> Columns:
    """Return what ``items`` consist of, and nothing for what none of them has."""
    params, grads, outs, states, scales = zip(*map(_TENSORS, items), strict=True)
    if set(map(len, states)) != {num_states}:
        raise ValueError(_DIFFER.format("states"))
    columns: dict[int, Sequence[Tensor | None]] = {_PARAM: params, _GRAD: grads, _OUT: outs}
    columns.update(enumerate(zip(*states, strict=True), _STATE))
    present: dict[int, Sequence[Tensor]] = {}
    for word, column in columns.items():
        if NoneType not in (classes := set(map(type, column))):
            present[word] = cast(Sequence[Tensor], column)
        elif len(classes) > 1:
            raise ValueError(_DIFFER.format("types"))
    for slot in range(num_states):
        if _STATE + slot in present and present[_STATE + slot][0].dtype is torch.uint8:
            given = [each[slot] for each in scales if slot < len(each)]
            present[_SCALE + slot] = [each for each in given if each is not None]
            if len(present[_SCALE + slot]) != len(items):
                raise _lacks_scales(slot)
    return present


def _types(columns: Columns, found: Places, num_states: int) -> Types:
    """Return the types of ``columns``, whose tensors are at ``found``.

    Raises ``ValueError`` unless all lie flat in ordinary memory and those of a column agree.
    """
    types: dict[int, ElementType] = {}
    rows = zip(
        *(each.reshape(len(columns), -1) for each in (found.numels, found.types)), strict=True
    )
    wanted = found.numels.reshape(len(columns), -1)[0]
    for (word, column), (numels, kinds) in zip(columns.items(), rows, strict=True):
        if _SCALE <= word < _OUT:
            if (kinds != ElementType.FP32).any() or (numels * BLOCK < wanted).any():
                raise _lacks_scales(word - _SCALE)
            continue
        wrong = (numels < 0) | (numels != wanted) | (kinds == ElementType.NONE)
        if wrong.any():
            at = int(wrong.argmax())
            raise _unusable(column[at], columns[_PARAM][at].numel())
        if (kinds != kinds[0]).any():
            raise ValueError(_DIFFER.format("types"))
        types[word] = ElementType(kinds[0])
    states = [types.get(_STATE + slot, ElementType.NONE) for slot in range(num_states)]
    return types[_PARAM], types[_GRAD], tuple(states), types.get(_OUT, ElementType.NONE)


def _unusable(tensor: Tensor, numel: int) -> ValueError:
    return ValueError(
        f"a tensor of {tensor.dtype}, shape {tuple(tensor.shape)} on {tensor.device}: give "
        f"contiguous tensors of {numel} elements in fp32, bf16, fp16 (or uint8 for a state) "
        "on the cpu"
    )


def _lacks_scales(slot: int) -> ValueError:
    return ValueError(
        f"state {slot} is in 8 bits: its scales need one fp32 number for each {BLOCK} elements"
    )
