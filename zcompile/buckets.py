"""DDP's buckets: memory for gradients that no plan can move.

Note [Gradients under DDP].  `DistributedDataParallel` averages gradients in flat buffers of
its own, which together are as large as all gradients and live as long as it does.  Gradients
are at home as without it, and their bytes in the buckets come on top.  With
``gradient_as_bucket_view=True`` the gradients are views of the buckets and have no homes.
Either way the memory is outside the budgets; what is not needed is DDP itself:
``torch.distributed.all_reduce`` averages a gradient where it is, at home.
"""

from __future__ import annotations

import warnings
import weakref

from torch import nn

from zcompile.bridge import torch_private
from zcompile.errors import size_text


class Buckets:
    """The buckets of every DDP that has called a compiled model."""

    def __init__(self) -> None:
        self._owners: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    @property
    def nbytes(self) -> int:
        """The bytes of all gradients of those DDP modules that are still alive."""
        return sum(
            each.nbytes
            for owner in self._owners
            for each in owner.parameters()
            if each.requires_grad
        )

    def look(self, *, gradients_leave: bool) -> None:
        """See whether DDP is calling; tell of it once if the plan lets ``gradients_leave``."""
        owner = torch_private.active_ddp()
        if owner is None or owner in self._owners:
            return
        is_first = not self._owners
        self._owners.add(owner)
        if is_first and gradients_leave:
            warnings.warn(
                f"DDP keeps {size_text(self.nbytes)} of gradients in buckets of its own, in "
                "ordinary memory, outside the budgets; to have none, leave DDP out and average "
                "each gradient after backward with torch.distributed.all_reduce",
                stacklevel=2,
            )
