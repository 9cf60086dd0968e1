"""Training loops for early updates: in some everything is foretold, in others nothing may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import ExponentialLR

import zcompile
from tests.optim.twins import Make

WIDTH = 160

Iterate = Callable[["Trainee", int], Tensor]
"""One iteration, by its number; returns the loss."""


@dataclass(frozen=True, slots=True)
class Trainee:
    """A model under training: ``compiled`` is what is called."""

    model: nn.Module
    compiled: Callable[[Tensor], Tensor]
    optimizers: tuple[Optimizer, ...]
    schedulers: tuple[ExponentialLR, ...]

    @classmethod
    def of(cls, compile_model: Callable[[nn.Module], Any], make: Make) -> Trainee:
        """Return a new model with the same weights each time."""
        torch.manual_seed(0)
        layers = [(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6)]
        model = nn.Sequential(*(each for layer in layers for each in layer))
        optimizer = make(list(model.parameters()))
        scheduler = ExponentialLR(optimizer, 0.9)
        return cls(model, compile_model(model), (optimizer,), (scheduler,))

    @property
    def optimizer(self) -> Optimizer:
        return self.optimizers[0]

    def loss(self, number: int) -> Tensor:
        random = torch.Generator().manual_seed(number)
        return self.compiled(torch.randn(8, WIDTH, generator=random)).square().mean()

    def contents(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all that training has made."""
        for name, param in self.model.named_parameters():
            yield name, param.detach()
            if param.grad is not None:
                yield f"gradient of {name}", param.grad
            for optimizer in self.optimizers:
                for kind, state in optimizer.state.get(param, {}).items():
                    if isinstance(state, Tensor):
                        yield f"{kind} of {name}", state


def plain(of: Trainee, number: int) -> Tensor:
    of.optimizer.zero_grad()
    loss = of.loss(number)
    loss.backward()
    of.optimizer.step()
    return loss


def turning_rates_after_the_step(of: Trainee, number: int) -> Tensor:
    loss = plain(of, number)
    of.schedulers[0].step()
    return loss


def turning_rates_before_the_step(of: Trainee, number: int) -> Tensor:
    of.optimizer.zero_grad()
    loss = of.loss(number)
    loss.backward()
    if number:
        of.schedulers[0].step()
    of.optimizer.step()
    return loss


def clipping(of: Trainee, number: int) -> Tensor:
    of.optimizer.zero_grad()
    loss = of.loss(number)
    loss.backward()
    nn.utils.clip_grad_norm_(of.model.parameters(), 1e-3)
    of.optimizer.step()
    return loss


def clipping_late(of: Trainee, number: int) -> Tensor:
    """Clip in some iterations only, after early updates have begun."""
    return clipping(of, number) if number in (5, 6) else plain(of, number)


def accumulating(of: Trainee, number: int) -> Tensor:
    of.optimizer.zero_grad()
    of.loss(1000 + number).backward()
    loss = of.loss(number)
    loss.backward()
    of.optimizer.step()
    return loss


def accumulating_late(of: Trainee, number: int) -> Tensor:
    return accumulating(of, number) if number == 5 else plain(of, number)


def throwing_gradients_away(of: Trainee, number: int) -> Tensor:
    """Walk another graph first, and forget what came of it."""
    if number == 5:
        of.optimizer.zero_grad()
        of.loss(1000 + number).backward()
    return plain(of, number)


def writing_behind_torch(of: Trainee, number: int) -> Tensor:
    """Change a gradient, a parameter or a state in ways that torch does not count."""
    of.optimizer.zero_grad()
    loss = of.loss(number)
    loss.backward()
    param = next(of.model.parameters())
    assert param.grad is not None
    state = of.optimizer.state.get(param, {})
    changed = {5: param.grad, 6: param.data, 7: state.get("exp_avg")}.get(number)
    if changed is not None:
        changed.numpy()[...] *= 0.5
    of.optimizer.step()
    return loss


def changing_options(of: Trainee, number: int) -> Tensor:
    of.optimizer.zero_grad()
    loss = of.loss(number)
    loss.backward()
    if number == 5:
        of.optimizer.param_groups[0]["betas"] = (0.8, 0.99)
    of.optimizer.step()
    return loss


def failing_in_backward(of: Trainee, number: int) -> Tensor:
    """Lose one backward to an error of a hook, when its graph has stored all gradients."""
    if number == 5:

        def fail(_: Tensor) -> None:
            raise RuntimeError("no gradient")

        first: Any = next(of.model.parameters())
        handle = first.register_hook(fail)
        of.optimizer.zero_grad()
        with pytest.raises(RuntimeError, match="no gradient"):
            of.loss(1000 + number).backward()
        handle.remove()
    return plain(of, number)


def skipping_steps(of: Trainee, number: int) -> Tensor:
    of.optimizer.zero_grad()
    loss = of.loss(number)
    loss.backward()
    if number != 6:
        of.optimizer.step()
    return loss


def stepping_by_closure(of: Trainee, number: int) -> Tensor:
    def closure() -> Tensor:
        of.optimizer.zero_grad()
        loss = of.loss(number)
        loss.backward()
        return loss

    step: Any = of.optimizer.step  # torch says that a loss is a number
    return cast("Tensor", step(closure))


def unscaling(of: Trainee, number: int) -> Tensor:
    """Scale the loss, and once so that nothing is finite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38 if number == 5 else 1024.0)
    of.optimizer.zero_grad()
    loss = of.loss(number)
    scaler.scale(loss * (1e10 if number == 5 else 1.0)).backward()
    scaler.step(of.optimizer)
    scaler.update()
    return loss


def clipping_by_ours(of: Trainee, number: int) -> Tensor:
    of.optimizer.zero_grad()
    loss = of.loss(number)
    loss.backward()
    zcompile.clip_grad_norm_(of.model.parameters(), 1e-3)
    of.optimizer.step()
    return loss


FORETOLD: dict[str, Iterate] = {
    "plain": plain,
    "rates turn after the step": turning_rates_after_the_step,
    "by closure": stepping_by_closure,
}
"""All early updates are right."""

SURPRISING: dict[str, Iterate] = {
    "clips late": clipping_late,
    "accumulates late": accumulating_late,
    "gradients thrown away": throwing_gradients_away,
    "written behind torch": writing_behind_torch,
    "options change": changing_options,
    "backward fails": failing_in_backward,
    "steps left out": skipping_steps,
}
"""Some early updates are wrong."""

NEVER: dict[str, Iterate] = {
    "clips": clipping,
    "accumulates": accumulating,
    "rates turn before the step": turning_rates_before_the_step,
    "unscales": unscaling,
}
"""No update may begin early."""

OPTIMIZERS: dict[str, Make] = {
    "adamw": partial(AdamW, lr=1e-2),
    "adam-fused": partial(Adam, lr=1e-2, fused=True, amsgrad=True),
    "sgd": partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
}
