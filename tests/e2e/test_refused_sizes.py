"""A batch that is too large for the budget is refused, and the run goes on with smaller ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
from torch.optim import AdamW

from tests.e2e.jobs import compiled
from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.ir import Tier

WIDTH, BATCH, TOO_LARGE = 64, 4, 4096


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def x_of(batch: int) -> Tensor:
    return torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(batch))


def train(call: Any, model: nn.Module, sizes: Sequence[int]) -> tuple[list[Tensor], int]:
    """Train on those of ``sizes`` that are not refused; return the weights, and how many are."""
    optimizer = AdamW(model.parameters(), lr=1e-2)
    refused = 0
    for size in sizes:
        try:
            loss = call(x_of(size)).square().mean()
        except BudgetError:
            refused += 1
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return [each.detach().clone() for each in model.parameters()], refused


def made() -> Layers:
    torch.manual_seed(0)
    return Layers()


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize(
    "sizes",
    [(TOO_LARGE, TOO_LARGE // 2, BATCH, BATCH + 1, TOO_LARGE, BATCH), (BATCH, TOO_LARGE, BATCH)],
    ids=["first", "later"],
)
def test_smaller_batches_go_on(dynamic: bool | None, sizes: Sequence[int], swap_dir: Path) -> None:
    """Dynamo may have compiled for any size when it comes to the one that is too large."""
    backend, model, plain = Backend(), made(), made()
    options = {"compute": "eager", "device_budget": "160KiB", "nvme_dir": swap_dir}
    got, refused = train(compiled(model, options, backend, dynamic=dynamic), model, sizes)
    fitting = [each for each in sizes if each < TOO_LARGE // 2]
    want, _ = train(plain, plain, fitting)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert refused == len(sizes) - len(fitting)
    (session,) = backend.sessions(model)
    assert 0 < session.total().peak_bytes[Tier.DEVICE] <= 160 << 10


def test_a_refusal_is_what_it_is_where_dynamo_hides_errors(swap_dir: Path) -> None:
    options = {"compute": "eager", "device_budget": 4096, "nvme_dir": swap_dir}
    call = compiled(made(), options, Backend())
    with dynamo_config.patch(suppress_errors=True), pytest.raises(BudgetError):
        call(x_of(BATCH))
