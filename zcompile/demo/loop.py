"""A training loop such as anybody would write: it knows nothing of budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from zcompile.demo.job import Job

Batch = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One optimizer step as it went; ``number`` counts from 0."""

    number: int
    loss: float
    seconds: float


def fine_tune(
    model: Callable[..., Any], parameters: Sequence[nn.Parameter], batches: list[Batch], job: Job
) -> Iterator[Iteration]:
    """Train ``model`` and yield each iteration when it is done."""
    optimizer = torch.optim.AdamW(parameters, lr=job.learning_rate)
    for number, batch in enumerate(islice(cycle(batches), job.steps)):
        started = perf_counter()
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield Iteration(number, loss.item(), perf_counter() - started)
