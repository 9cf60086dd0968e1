"""Small models that run within a budget, for reports to look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

BUDGET_BYTES = 2 << 20
"""A third of what the weights, gradients and Adam's states of `layers` take."""

INPUT = torch.linspace(-1, 1, 8 * 256).view(8, 256)


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))


def compiled(model: Any, nvme_dir: Path) -> Any:
    options: dict[str, str | int | bool | Callable[..., Any]] = {
        "device_budget": BUDGET_BYTES,
        "nvme_dir": str(nvme_dir),
        "compute": "eager",
    }
    return torch.compile(model, backend="zinf", options=options)


def train(model: Any, parameters: list[nn.Parameter], steps: int) -> None:
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(steps):
        loss: Any = model(INPUT).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
