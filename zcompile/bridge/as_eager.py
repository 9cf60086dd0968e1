"""Operations of traced graphs whose bits differ from those of what PyTorch does eagerly.

Tracing puts ``native_dropout`` in the place of dropout.  Forward has the same bits.  Backward
multiplies by the mask and then by the scale; eagerly the mask is scaled first, and in 16 bits the
scale is rounded by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor


def _dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Any:
    if gradient.dtype not in (torch.bfloat16, torch.float16):
        return NotImplemented  # nothing is rounded twice: let the operation be
    return gradient * (mask.to(gradient.dtype) * scale)


AS_EAGER: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {torch.ops.aten.native_dropout_backward.default: _dropout_backward}
)
"""What AOTAutograd has to take apart for the bits of plain PyTorch."""
