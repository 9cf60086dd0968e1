"""Handles: small tensors that autograd saves in place of what backward makes again.

A handle stands for all such values of one invocation of a forward graph.  What their making
needs beside the arguments of backward hangs on it: autograd's graph keeps the handle, the handle
keeps that, and nothing else does.  So a graph may be walked twice, or never; several may be in
flight; and when the last tensor over a handle goes, what hangs on it goes.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

HANDLE_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What hangs on a handle: by the names that backward has for them, tensors and sizes.

    ``dropped`` are the values that the handle stands for, ``graph`` the forward graph that they
    are of.  Versions of tensors are those of the moment when this is made.
    """

    graph: str
    dropped: frozenset[str]
    tensors: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    _versions: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        tracked = {name: each for name, each in self.tensors.items() if not each.is_inference()}
        versions = {name: each._version for name, each in tracked.items()}
        object.__setattr__(self, "_versions", versions)

    def further(self, names: Sequence[str]) -> list[Tensor | int]:
        """Return what is called by ``names``, tensors and sizes, in this order."""
        sizes = self.sizes
        return [sizes[name] if name in sizes else self.tensors[name] for name in names]

    def check(self) -> None:
        """Raise ``RuntimeError``, as autograd does, if a tensor was changed in place since."""
        for name, version in self._versions.items():
            now = self.tensors[name]._version
            if now != version:
                shape = list(self.tensors[name].shape)
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: {name}, of shape {shape}, is at version {now}; expected "
                    f"version {version} instead.  Backward makes again what {self.graph} computed "
                    'from it; change it after backward, or compile with recompute="never"'
                )


class Handles:
    """The handles that there are, found by their addresses."""

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def give(self, kept: Kept) -> Tensor:
        """Return a new handle for ``kept``, which lives as long as a tensor over its memory."""
        buffer = (ctypes.c_char * HANDLE_BYTES)()
        address = ctypes.addressof(buffer)
        self._kept[address] = kept
        # A finalizer may run inside any other code: one operation of a dictionary takes no lock.
        weakref.finalize(buffer, self._kept.pop, address, None).atexit = False
        return torch.frombuffer(buffer, dtype=torch.uint8)

    def find(self, tensor: object) -> Kept | None:
        """Return what hangs on ``tensor``, or on what it is a view of, if it is a handle."""
        if not self._kept or not isinstance(tensor, Tensor):
            return None
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            return None
        return self._kept.get(tensor.data_ptr())

    def among(self, tensors: Collection[object]) -> Kept | None:
        """Return what hangs on the first handle among ``tensors``; those of one call share it."""
        return next((kept for each in tensors if (kept := self.find(each)) is not None), None)
