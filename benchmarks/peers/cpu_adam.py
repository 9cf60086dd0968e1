"""DeepSpeed's CPUAdam over the memory of our items."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from zcompile.runtime.optim_batch import Item


def is_here() -> bool:
    """Whether DeepSpeed is installed."""
    return importlib.util.find_spec("deepspeed") is not None


def set_threads(threads: int) -> None:
    """Set the number of threads of the OpenMP that it is linked with, which is not torch's."""
    ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)


def optimizer_over(items: Sequence[Item], lr: float, weight_decay: float) -> Any:
    """Return its AdamW over the parameters of ``items``, whose gradients are set if they fit."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    params = [Parameter(one.param) for one in items]
    optimizer = DeepSpeedCPUAdam(params, lr=lr, weight_decay=weight_decay, adamw_mode=True)
    for param, one in zip(params, items, strict=True):
        if one.grad.dtype is param.dtype:
            param.grad = one.grad
        moments = zip(("exp_avg", "exp_avg_sq"), one.states, strict=True)
        optimizer.state[param] = {"step": 4, **dict(moments)}
    return optimizer


def with_passes(optimizer: Any, grad: Tensor, wide: Tensor, out: Tensor) -> Callable[[], object]:
    """Return a step from a narrow gradient to a narrow copy, through passes of their own."""
    (param,) = optimizer.param_groups[0]["params"]

    def step() -> None:
        param.grad = wide.copy_(grad)
        optimizer.step()
        out.copy_(param.detach())

    return step
