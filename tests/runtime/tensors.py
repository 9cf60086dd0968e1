"""Tensors of every kind, in memory and at home, and how they are compared."""

from __future__ import annotations

import torch
from torch import Tensor

from zcompile.ir import Tier
from zcompile.runtime.binding import Layout
from zcompile.runtime.machine import Machine

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]

LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "scalar": ((), ()),
    "empty": ((0, 5), (5, 1)),
    "a page and a bit": ((1025,), (1,)),
    "matrix": ((33, 65), (65, 1)),
    "transposed": ((33, 65), (1, 33)),
    "channels last": ((2, 3, 4, 5), (60, 1, 15, 3)),
    "with gaps": ((7, 5), (8, 1)),
    "a dimension of one": ((1, 9), (77, 1)),
}


def content_of(layout: Layout, seed: int = 0) -> Tensor:
    """Return a tensor of ``layout`` with random content, in ordinary memory."""
    random = torch.Generator().manual_seed(seed)
    integers = torch.randint(-100, 100, layout.shape, generator=random)
    if layout.dtype is torch.bool:
        integers = integers % 2
    return layout.copy_of(integers.to(layout.dtype))


def at_rest(machine: Machine, tier: Tier, content: Tensor) -> Tensor:
    """Return a tensor with a home on ``tier`` and the elements of ``content``."""
    layout = Layout.of(content)
    home = machine.homes.fresh("w", tier, layout.dtype, layout.shape, layout.stride)
    return home.copy_(content)


def bits(tensor: Tensor) -> bytes:
    """Return the bytes of the elements of ``tensor``, in their logical order."""
    elements = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return elements.view(torch.uint8).numpy().tobytes()


def tier_of(machine: Machine, tensor: Tensor) -> Tier:
    place = machine.homes.find(tensor)
    return place.home.tier if place else Tier.DEVICE
