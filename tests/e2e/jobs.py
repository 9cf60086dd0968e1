"""Small trainings that give the same bits whenever they are run, and all that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR, StepLR

from tests.e2e import models

ITERATIONS = 20

Compile = Callable[[nn.Module], Any]
"""``torch.compile`` with a backend and options, or nothing at all."""

Record = Mapping[str, Tensor]
"""All tensors after one iteration, by what they are."""


@dataclass(frozen=True, slots=True)
class Job:
    """A model, how it learns, and what it learns from.

    ``loss`` gives the loss of one iteration; ``compiled`` is what it calls.
    """

    make_model: Callable[[], nn.Module]
    make_optimizer: Callable[[nn.Module], Optimizer]
    make_scheduler: Callable[[Optimizer], LRScheduler]
    loss: Callable[[Any, torch.Generator], Tensor]

    def model(self) -> nn.Module:
        """Return the model as it is before training; the same weights each time."""
        torch.manual_seed(0)
        return self.make_model().train()


class Training:
    """A job under way: a new model, compiled, with its optimizer."""

    def __init__(self, job: Job, compile_model: Compile) -> None:
        self.model = job.model()
        self.compiled = compile_model(self.model)
        self.optimizer = job.make_optimizer(self.model)
        self._job = job
        self._scheduler = job.make_scheduler(self.optimizer)

    def iterations(self, number: int = ITERATIONS) -> Iterator[Record]:
        """Train; yield all tensors after each iteration.  The gradients of the last one stay.

        Randomness is seeded once, so that drawing too much or too little shows ever after.
        """
        torch.manual_seed(1)
        for iteration in range(number):
            self.optimizer.zero_grad()
            loss: Any = self._job.loss(self.compiled, torch.Generator().manual_seed(iteration))
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self._scheduler.step()
            yield {
                "loss": loss.detach().clone(),
                "norm of the gradients": norm.clone(),
                "state of the generator": torch.get_rng_state(),
                **tensors_of(self.model, self.optimizer),
            }


def train(job: Job, compile_model: Compile, number: int = ITERATIONS) -> list[Record]:
    """Return all tensors after each iteration of a new training."""
    return list(Training(job, compile_model).iterations(number))


def compiled(
    model: Any,
    options: Mapping[str, object],
    backend: Callable[..., Any] | str = "zinf",
    **more: Any,
) -> Any:
    """Return ``model`` compiled by ``backend`` under ``options``; ``more`` are other arguments."""
    return torch.compile(model, backend=backend, options=cast("Any", options), **more)


def tensors_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return copies of all weights, buffers, gradients and states, by what they are."""
    found: dict[str, Tensor] = {}
    for name, buffer in model.named_buffers():
        found[f"buffer {name}"] = buffer.clone()
    for name, parameter in model.named_parameters():
        found[f"weight {name}"] = parameter.detach().clone()
        if parameter.grad is not None:
            found[f"gradient {name}"] = parameter.grad.clone()
        states: Mapping[str, object] = optimizer.state.get(parameter, {})
        for kind, state in states.items():
            if isinstance(state, Tensor):
                found[f"state {name} {kind}"] = state.clone()
    return found


def differences(got: list[Record], want: list[Record]) -> list[str]:
    """Return what differs in any bit, iteration by iteration; NaN of equal bits are equal."""
    assert len(got) == len(want)
    found: list[str] = []
    for iteration, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        for name in sorted({*mine, *theirs}):
            if name not in mine or name not in theirs or not same_bits(mine[name], theirs[name]):
                found.append(f"iteration {iteration}: {name}")
    return found


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same type, shape and bits."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(_bytes(a), _bytes(b))


def relative_distance(a: Tensor, b: Tensor) -> float:
    """Return how far ``a`` is from ``b``, as a share of the length of ``b``."""
    a, b = a.double(), b.double()
    length = torch.dist(b, torch.zeros_like(b)).item()
    return torch.dist(a, b).item() / (length or 1)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _words(generator: torch.Generator, batch: int = 2, length: int = 9) -> Tensor:
    return torch.randint(0, 61, (batch, length), generator=generator)


def _next_word_loss(
    compiled: Any, generator: torch.Generator, batch: int = 2, length: int = 9
) -> Tensor:
    words = _words(generator, batch, length)
    scores: Tensor = compiled(words[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())


def _own_loss(compiled: Any, generator: torch.Generator) -> Tensor:
    """Return the loss of a transformers model for sentences of different length.

    Without a mask that masks something, transformers calls another attention kernel when
    its code is traced than when it is not, and no compiler gives the bits of plain PyTorch.
    """
    words = _words(generator)
    mask = torch.ones_like(words)
    mask[0, -2:] = 0
    labels = words.masked_fill(mask == 0, -100)
    return compiled(input_ids=words, attention_mask=mask, labels=labels).loss  # type: ignore[no-any-return]


def _class_loss(compiled: Any, generator: torch.Generator) -> Tensor:
    images = torch.randn(4, 3, 6, 6, generator=generator)
    classes = torch.randint(0, 7, (4,), generator=generator)
    return functional.cross_entropy(compiled(images), classes)


def _square_loss(compiled: Any, generator: torch.Generator) -> Tensor:
    x = torch.randn(5, 4, 13, generator=generator)
    return functional.mse_loss(compiled(x), x[:, :, :3].sum(1))


def _in_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return two groups: matrices decay, the rest does not and learns faster."""
    parameters = list(model.parameters())
    return [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": 0.1},
        {"params": [each for each in parameters if each.dim() <= 1], "lr": 3e-3},
    ]


def _one_cycle(optimizer: Optimizer) -> LRScheduler:
    """Return a scheduler that changes the betas too."""
    return OneCycleLR(optimizer, max_lr=3e-3, total_steps=ITERATIONS + 1)


WIDE = Job(
    partial(models.LanguageModel, 128, 2, 1024, max_time=64),
    lambda model: AdamW(model.parameters(), lr=1e-3, weight_decay=0.1),
    partial(CosineAnnealingLR, T_max=ITERATIONS),
    partial(_next_word_loss, batch=4, length=65),
)
"""Large enough for kernels to use several threads; its few words come often."""

JOBS: dict[str, Job] = {
    "wide-adamw": WIDE,
    "lm-adamw": Job(
        models.LanguageModel,
        lambda model: AdamW(model.parameters(), lr=1e-3, weight_decay=0.1),
        partial(CosineAnnealingLR, T_max=ITERATIONS),
        _next_word_loss,
    ),
    "lm-dropout-amsgrad": Job(
        partial(models.LanguageModel, dropout=0.1),
        lambda model: Adam(model.parameters(), lr=1e-3, amsgrad=True),
        partial(StepLR, step_size=3, gamma=0.7),
        _next_word_loss,
    ),
    "conv-sgd": Job(
        models.ConvNet,
        lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True),
        partial(StepLR, step_size=5, gamma=0.5),
        _class_loss,
    ),
    "recurrent-fused": Job(
        models.Recurrent,
        lambda model: AdamW(model.parameters(), lr=1e-3, fused=True),
        _one_cycle,
        _square_loss,
    ),
    "llama-adamw": Job(
        models.llama,
        lambda model: AdamW(_in_groups(model), lr=1e-3),
        partial(CosineAnnealingLR, T_max=ITERATIONS),
        _own_loss,
    ),
    "bert-fused": Job(
        models.bert,
        lambda model: AdamW(_in_groups(model), lr=1e-3, fused=True),
        _one_cycle,
        _own_loss,
    ),
}
"""By name: the trainings whose bits are compared."""
