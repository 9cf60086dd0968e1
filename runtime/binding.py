"""What the names of a schedule stand for in one invocation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from zcompile.runtime.buffer import span


@dataclass(frozen=True, slots=True)
class Layout:
    """How the elements of a value lie in its bytes; strides are in elements, as in torch.

    Bytes between the elements, where strides leave gaps, count as the value's and travel
    with it.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """Return the layout of ``tensor``."""
        return cls(tensor.dtype, tuple(tensor.shape), tensor.stride())

    @property
    def nbytes(self) -> int:
        """The bytes from the first element to the last one, both included."""
        return span(self.shape, self.stride) * self.dtype.itemsize

    def of_gradient(self) -> Layout:
        """Return how autograd keeps the gradient of a parameter that lies so.

        It lies as its parameter does if the elements of that fill their bytes, each once, and
        row by row otherwise.

        >>> Layout(torch.float32, (2, 3), (1, 2)).of_gradient().stride
        (1, 2)
        >>> Layout(torch.float32, (2, 3), (6, 2)).of_gradient().stride
        (3, 1)
        """
        filled = 1
        for step, size in sorted(zip(self.stride, self.shape, strict=True)):
            if size != 1 and step != filled:
                return replace(self, stride=_row_by_row(self.shape))
            filled *= size
        return self

    def holds(self, tensor: Tensor) -> bool:
        """Say whether the bytes of ``tensor`` lie in this layout."""
        lies_alike = all(
            size == 1 or ours == its
            for size, ours, its in zip(tensor.shape, self.stride, tensor.stride(), strict=True)
        )
        return lies_alike and not tensor.is_conj() and not tensor.is_neg()

    def copy_of(self, tensor: Tensor) -> Tensor:
        """Return the elements of ``tensor`` in new memory of this layout."""
        copy = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="cpu")
        return copy.copy_(tensor.detach())


def _row_by_row(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True, slots=True)
class Binding:
    """A value of the schedule: how it lies, and where its bytes come from.

    ``source`` is the tensor that a fetch copies: over a home, or over any other memory,
    which is then read as it is.  An offload of a value with a source replaces the bytes
    of the source; an offload of one without gives it a fresh home.
    """

    layout: Layout
    source: Tensor | None = None

    @classmethod
    def to(cls, source: Tensor) -> Self:
        """Return the binding to a tensor that exists."""
        return cls(Layout.of(source), source)
