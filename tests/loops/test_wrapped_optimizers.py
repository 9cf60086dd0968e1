"""Optimizers within others that are of the type, but were never made as optimizers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch.optim import Optimizer

from tests.loops.nets import Layers, adamw, square_loss
from tests.loops.playing import Run, check_loop


class Wrapper(Optimizer):
    """Shows what another optimizer has, as its own, and lets that do the work."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups
        self.state = inner.state

    def step(self, closure: Any = None) -> Any:
        inner: Any = self.inner
        return inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


def accelerated(optimizer: Optimizer) -> Any:
    accelerate: Any = import_module("accelerate")
    return accelerate.Accelerator(cpu=True).prepare(optimizer)


@pytest.mark.parametrize("wrap", [Wrapper, accelerated])
def test_the_optimizer_within_is_the_one_that_updates(
    wrap: Callable[[Optimizer], Any], swap_dir: Path
) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call, inner = run.compile(model), adamw(model.parameters(), weight_decay=0.1)
        optimizer = wrap(inner)
        for seed in range(3):
            square_loss(call, seed).backward()
            optimizer.step()
            optimizer.zero_grad()
            run.see_all(model, inner)

    check_loop(loop, swap_dir)
