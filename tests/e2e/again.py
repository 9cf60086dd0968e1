"""Models whose backward makes saved values again, trained beside plain PyTorch."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tests.e2e.jobs import compiled
from tests.e2e.test_activations import BATCH, alike, session_of, trained
from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.fuzz import FuzzExecutor
from zcompile.runtime.machine import MakeExecutor
from zcompile.session import Session

EAGER = {"compute": "eager", "recompute": "always"}
FUZZ = [partial(FuzzExecutor, seed=seed) for seed in range(2)]


def dropped(session: Session) -> set[str]:
    """Return the values that backward makes again in the plans of ``session``."""
    return {name for planned in session.planned() for name in planned.plan.dropped}


def handles(backend: Backend) -> int:
    gc.collect()
    return len(backend.handles)


def least_budget(make: Callable[[], nn.Module], **options: Any) -> int:
    """Return the smallest budget in which ``make`` trains with AdamW."""
    model = make()
    with pytest.raises(BudgetError) as refused:
        trained(model, compiled(model, {"device_budget": "8KiB", **options}), (BATCH,))
    torch.compiler.reset()
    return refused.value.smallest_bytes


def check_same_bits(
    make: Callable[[], nn.Module],
    options: dict[str, Any],
    sizes: tuple[int, ...] = (BATCH,) * 2,
    *,
    dynamic: bool | None = None,
    make_executor: MakeExecutor = CpuExecutor,
) -> Session:
    """Check that training under ``options`` gives plain PyTorch's bits; return its session."""
    plain = make()
    want = trained(plain, plain, sizes)
    torch.compiler.reset()
    backend, model = Backend(make_executor), make()
    got = trained(model, compiled(model, options, backend, dynamic=dynamic), sizes)
    assert alike(got, want)
    assert handles(backend) == 0
    return session_of(backend, model)
