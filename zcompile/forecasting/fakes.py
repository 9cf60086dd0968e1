"""Copies of models and inputs that have shapes and no memory.

Note [Fakes lie on the CPU].  A tensor on the meta device takes other kernels than one on the
CPU: attention is taken apart, for one.  So every tensor is replaced by a fake one that says it
lies on the CPU, where the backend drives kernels so far, and what is captured is what runs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from zcompile.bridge.sizes import hint
from zcompile.bridge.torch_private import FakeTensorMode, storage_key


class Fakes:
    """Makes one fake tensor for each tensor that it meets, and for shared memory shared memory."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._bases: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []

    def model(self, model: nn.Module, shortened: Mapping[int, nn.Module]) -> nn.Module:
        """Return a copy of ``model`` with fake tensors; ``model`` is not touched.

        ``shortened`` gives by the id of a module what takes its place; what is in it is
        copied too.
        """
        memo: dict[int, Any] = {}
        self._kept += list(tensors_in(model))
        for tensor in self._kept:
            if id(tensor) not in memo:
                memo[id(tensor)] = self.tensor(tensor)
        for each, instead in shortened.items():
            memo[each] = copy.deepcopy(instead, memo)
        made: nn.Module = copy.deepcopy(model, memo)
        return made

    def inputs(self, given: Any) -> Any:
        """Return ``given``, any nest of tensors and other things, with fake tensors."""
        return pytree.tree_map_only(Tensor, self.tensor, given)

    def tensor(self, given: Tensor) -> Tensor:
        """Return the fake of ``given``, on the CPU.

        Raises ``ValueError`` for a tensor that has no plain memory.
        """
        if given.layout is not torch.strided:
            raise ValueError(
                f"a tensor of layout {given.layout} has no forecast; give dense tensors, or leave "
                "them out of the model"
            )
        with self.mode, torch.no_grad():
            made = self._over_base(given)
            if isinstance(given, nn.Parameter):
                return nn.Parameter(made, requires_grad=given.requires_grad)
            return made.requires_grad_(given.requires_grad) if given.requires_grad else made

    def _over_base(self, given: Tensor) -> Tensor:
        """Return a fake over the memory that stands for that of ``given``."""
        key, dtype = storage_key(given), given.dtype
        shape, strides = given.shape, given.stride()
        num_stored = given.untyped_storage().nbytes() // dtype.itemsize
        base = self._bases.get(key)
        if base is None and num_stored == given.numel():
            base = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
            self._bases[key] = base
            return base
        if base is None:
            base = self._bases[key] = torch.empty(num_stored, dtype=dtype, device="cpu")
        return base.view(dtype).as_strided(shape, strides, given.storage_offset())


def tensors_in(model: nn.Module) -> Iterator[Tensor]:
    """Yield every tensor of ``model``: parameters, buffers, and plain attributes of modules."""
    for module in model.modules():
        yield from module.parameters(recurse=False)
        yield from module.buffers(recurse=False)
        yield from (each for each in vars(module).values() if isinstance(each, Tensor))


def empty_like(value: object, mode: AbstractContextManager[Any]) -> object:
    """Return a new fake like ``value``, with the sizes of the call; what is no tensor as it is."""
    if isinstance(value, torch.SymInt):
        return hint(value)
    if not isinstance(value, Tensor):
        return value
    shape, strides = [hint(n) for n in value.shape], [hint(n) for n in value.stride()]
    with mode:
        return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
