"""A script run by plain PyTorch and with every state in a file, and a look at what rests where."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tests.e2e.sides import Compile, check_same
from zcompile.ir import Tier
from zcompile.session import Session

Train = Callable[[nn.Module, Any], list[Tensor]]
"""Trains a model by calling what was compiled of it; returns what it saw, in copies."""


def check_training(
    make: Callable[[], nn.Module], train: Train, swap_dir: Path, **more: Any
) -> tuple[Session, nn.Module]:
    """Check that ``train`` sees the bits of plain PyTorch; return the session and its model."""
    models: list[nn.Module] = []

    def script(compile_model: Compile) -> list[Tensor]:
        models.append(make())
        return train(models[-1], compile_model(models[-1]))

    (session,) = check_same(script, swap_dir, **more)
    return session, models[-1]


def check_in_file(session: Session, tensors: Iterable[Tensor]) -> None:
    """Check that each of ``tensors`` rests in the file of ``session``."""
    places = [session.machine.homes.find(each) for each in tensors]
    assert places
    assert all(place is not None and place.home.tier is Tier.NVME for place in places), places


def gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradients that the parameters of ``model`` have."""
    return [each.grad for each in model.parameters() if each.grad is not None]
