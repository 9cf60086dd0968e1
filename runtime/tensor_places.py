"""Reads where many tensors lie, of which sizes and types, in one call of the native library.

torch says these things of one tensor and one thing at a time, each in some 35 ns; for the tensors
of an update that is longer than the update of the smaller ones.  DLPack's exchange interface says
all of them at once to C, without a reference or an allocation.  What it cannot say, and what it
says of tensors that are not flat, is left to ``Tensor``'s own methods.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Parameter

from zcompile.runtime.native import Native, load

CAPSULE = "dlpack_exchange_api"
MAJOR_VERSION = 1
"""Of DLPack: what comes after it has other structures."""


class ElementType(IntEnum):
    """Types of elements, as ``zinf_optim.h`` numbers them."""

    NONE = 0
    FP32 = 1
    BF16 = 2
    FP16 = 3
    Q8 = 4


TYPES = {
    torch.float32: ElementType.FP32,
    torch.bfloat16: ElementType.BF16,
    torch.float16: ElementType.FP16,
    torch.uint8: ElementType.Q8,
}

TENSOR_TYPES = frozenset({Tensor, Parameter})
"""Other classes may say of themselves what does not hold of their memory."""


class _Interface(ctypes.Structure):
    """``DLPackExchangeAPI``."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        *((f"owning{number}", ctypes.c_void_p) for number in range(3)),
        ("describe", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


class _Forms(ctypes.Structure):
    """``zinf_tensor_forms``."""

    _fields_ = (("numels", ctypes.c_void_p), ("types", ctypes.c_void_p))


class _Table(ctypes.Structure):
    """``zinf_tensor_table``."""

    _fields_ = (
        ("objects", ctypes.c_void_p),
        ("forms", _Forms),
        ("words", ctypes.c_void_p),
        ("num_columns", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
        ("row_words", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
    )


ARGUMENTS: dict[str, list[Any]] = {
    "zinf_tensors_read": [
        *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p),
        ctypes.POINTER(_Forms),
    ],
    "zinf_tensors_place": [ctypes.POINTER(_Table)],
}
"""Those of each function that come after torch's description."""


@dataclass(frozen=True, slots=True)
class Places:
    """Addresses; numbers of elements, -1 where they are not dense in ordinary memory; and types.

    Types are numbered as in ``zinf_optim.h``, 0 where it knows none.
    """

    addresses: npt.NDArray[np.uint64]
    numels: npt.NDArray[np.int64]
    types: npt.NDArray[np.int32]

    def forms(self) -> _Forms:
        """Return what there is besides addresses, as the library takes it."""
        return _Forms(self.numels.ctypes.data, self.types.ctypes.data)


def objects_of(tensors: Iterable[Tensor], num: int) -> npt.NDArray[np.object_]:
    """Return ``num`` tensors as an array of Python's objects, as ``places`` takes them."""
    return np.fromiter(tensors, np.object_, num)


def places(tensors: npt.NDArray[np.object_]) -> Places:
    """Return where ``tensors`` lie now."""
    num = len(tensors)
    found = Places(np.empty(num, np.uint64), np.empty(num, np.int64), np.empty(num, np.int32))
    address = found.addresses.ctypes.data
    usual = TENSOR_TYPES.issuperset(map(type, tensors))
    if usual and _call("zinf_tensors_read", tensors.ctypes.data, num, address, found.forms()):
        return found
    return _by_methods(tensors)


class PlacedRows:
    """Rows of words in memory, some of which are the addresses of tensors.

    ``tensors`` are in columns, one of each for a row; ``words`` has the word of each column.
    ``found`` is where they are; they stay of those sizes and types.
    """

    def __init__(
        self,
        rows: npt.NDArray[Any],
        words: Sequence[int],
        tensors: npt.NDArray[np.object_],
        found: Places,
    ) -> None:
        self._rows = rows.view(np.uint64).reshape(len(rows), -1)
        self._words = np.array(words, np.int64)
        self._tensors = tensors
        self._as_made = found
        self._table = _Table(
            tensors.ctypes.data,
            found.forms(),
            self._words.ctypes.data,
            len(words),
            *self._rows.shape,
            self._rows.ctypes.data,
        )
        self._put_down(found)

    def read_again(self) -> None:
        """Have the rows say where the tensors are now.

        Raises ``ValueError`` if one is no longer of the size, layout or type that it was of.
        """
        if _call("zinf_tensors_place", self._table):
            return
        now = places(self._tensors)
        same = np.array_equal(now.numels, self._as_made.numels)
        if not same or not np.array_equal(now.types, self._as_made.types):
            raise ValueError(
                "a tensor of this batch has another size, layout or type than when the batch was "
                "made: make a new one of the tensors as they are"
            )
        self._put_down(now)

    def _put_down(self, places_: Places) -> None:
        columns = places_.addresses.reshape(len(self._words), len(self._rows))
        self._rows[:, self._words] = columns.T


def _call(name: str, *arguments: object) -> bool:
    """Return whether the function ``name`` of the library is there and could read everything."""
    function = library_function(name)
    if function is None:
        return False
    try:
        return function(*arguments) == 0
    except RuntimeError:  # of tensors without memory: on meta, or sparse
        return False


def _by_methods(tensors: Iterable[Tensor]) -> Places:
    addresses: list[int] = []
    numels: list[int] = []
    types: list[int] = []
    for tensor in tensors:
        flat = tensor.layout is torch.strided and tensor.is_cpu and tensor.is_contiguous()
        flat = flat and (tensor.numel() == 0 or tensor.data_ptr() != 0)
        addresses.append(tensor.data_ptr() if flat else 0)
        numels.append(tensor.numel() if flat else -1)
        types.append(TYPES.get(tensor.dtype, ElementType.NONE))
    return Places(
        np.array(addresses, np.uint64), np.array(numels, np.int64), np.array(types, np.int32)
    )


@cache
def library_function(name: str) -> Callable[..., int] | None:
    """Return a function of the library over torch's description of its tensors."""
    native, describe = load(), _describe()
    if not isinstance(native, Native) or describe is None:
        return None
    return partial(native.locked(name, [ctypes.c_void_p, *ARGUMENTS[name]]), describe)


def _describe() -> int | None:
    """Return the address of torch's function, ``None`` if this torch has none that is known."""
    capsule: object = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    get_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = ctypes.c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    interface = _Interface.from_address(get_pointer(capsule, CAPSULE.encode()))
    return interface.describe if interface.major == MAJOR_VERSION else None
