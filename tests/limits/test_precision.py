"""Options of precision where they cannot be carried out: refused, and nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adafactor, AdamW, Optimizer

from tests.limits.small import WIDTH
from zcompile.backend import Backend

X = torch.ones(2, WIDTH, dtype=torch.bfloat16)


class Scaled(nn.Module):
    """A layer, with a second parameter over the memory of its weight."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH).bfloat16()
        self.row = nn.Parameter(self.layer.weight.detach()[0]) if tied else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y if self.row is None else y * self.row


def trained_once(model: nn.Module, **options: Any) -> None:
    options = {"compute": "eager", **options}
    torch.compile(model, backend=Backend(), options=options)(X).float().square().mean().backward()


def refuses(model: nn.Module, optimizer: Optimizer, message: str) -> None:
    before = [each.detach().clone() for each in model.parameters()]
    with pytest.raises(ValueError, match=message):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not any(optimizer.state.values())


def test_an_optimizer_that_is_not_updated_by_us_keeps_no_masters() -> None:
    model = Scaled(tied=False)
    trained_once(model, master_weights=True)
    refuses(model, Adafactor(model.parameters()), r"master_weights=True.*updated by its own step")


def test_parameters_that_share_memory_keep_no_masters() -> None:
    model = Scaled(tied=True)
    trained_once(model, master_weights=True)
    refuses(model, AdamW(model.parameters()), r"dense memory of its own")


@pytest.mark.parametrize(
    ("option", "value"),
    [("state_dtype", "8bit"), ("state_dtype", "bf16"), ("rounding", "stochastic")],
)
def test_without_the_native_library_there_are_no_other_types(
    option: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZINF_NATIVE", "0")
    with pytest.raises(ValueError, match=rf"{option}='{value}': needs the native library, but"):
        trained_once(Scaled(tied=False), **{option: value})
