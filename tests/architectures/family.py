"""One family of models: how a tiny one is made, called and trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

from tests.e2e.jobs import Job

Kind = Literal[
    "decoder",
    "encoder",
    "encoder-decoder",
    "mixture of experts",
    "vision",
    "audio",
    "multimodal",
    "state space",
]

Reference = Literal["eager", "aot_eager"]

Batch = Callable[[torch.Generator], dict[str, Any]]
"""Draws the arguments of one call, labels included."""


def with_decay(model: nn.Module) -> Optimizer:
    """Return AdamW over all parameters."""
    return AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


def with_momentum(model: nn.Module) -> Optimizer:
    """Return SGD over all parameters."""
    return SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)


def own_loss(output: Any) -> Tensor:
    """Return the loss that a model of transformers finds itself."""
    loss: Tensor = output.loss
    return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture: the class in transformers, its sizes, and what it is called with.

    ``reference`` is whose bits are wanted: plain PyTorch's, or those of ``torch.compile`` with
    the backend ``aot_eager`` where these two differ, for the reason in ``because``.
    """

    kind: Kind
    model: str
    sizes: Mapping[str, Any]
    batch: Batch
    loss: Callable[[Any], Tensor] = own_loss
    make_optimizer: Callable[[nn.Module], Optimizer] = with_decay
    reference: Reference = "eager"
    because: str = ""

    def job(self) -> Job:
        """Return the training of a new model of the family."""
        scheduler = partial(StepLR, step_size=2, gamma=0.5)
        return Job(self.build, self.make_optimizer, scheduler, self._loss)

    def build(self) -> nn.Module:
        """Return a new model with random weights; nothing is downloaded."""
        model_class: Any = getattr(transformers, self.model)
        model: nn.Module = model_class(model_class.config_class(**self.sizes))
        return model

    def _loss(self, compiled: Any, generator: torch.Generator) -> Tensor:
        return self.loss(compiled(**self.batch(generator)))
