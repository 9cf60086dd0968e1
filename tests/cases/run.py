"""What a case is made of: models that are compiled or not, their optimizers, and what is seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from tests.e2e.jobs import compiled

OptionsOf = Callable[[int], Mapping[str, object]]
"""The options for the model that is compiled as the first, the second and so on."""


@dataclass(frozen=True, slots=True)
class Case:
    """Something that people do and complain about.

    ``act`` makes models through its run, trains them, and lets the run see what must not
    change.  ``refusals`` says how often a tight budget turns out too small for each model:
    once, or more if graphs that come later need more.  ``warns`` is what a warning tells then
    that something stays outside the budget.  ``slow`` cases are those of which others show the
    same mechanism; ``inductor`` asks for the case with compiled segments too.
    """

    act: Callable[[Run], None]
    refusals: int = 1
    warns: str | None = None
    slow: bool = False
    inductor: bool = False

    @property
    def name(self) -> str:
        return self.act.__name__


def case(**more: Any) -> Callable[[Callable[[Run], None]], Case]:
    """Return a decorator that makes a function a `Case`."""
    return lambda act: Case(act, **more)


def cases_of(module: ModuleType) -> list[Case]:
    """Return the cases of ``module``, as they stand in it."""
    return [each for each in vars(module).values() if isinstance(each, Case)]


class Run:
    """One way through a case: by plain PyTorch where there are no options, or compiled.

    Whatever the case lets it `see` is compared with what other runs of it have seen.
    """

    def __init__(self, options_of: OptionsOf | None = None) -> None:
        self.seen: list[tuple[str, Tensor]] = []
        self.compiled: list[Any] = []
        self._options_of = options_of
        torch.manual_seed(0)

    def compile(self, what: Any, **more: Any) -> Any:
        """Return ``what`` ready to be called; ``more`` are other arguments of ``torch.compile``."""
        if self._options_of is None:
            return what
        options = self._options_of(len(self.compiled))
        self.compiled.append(what)
        return compiled(what, options, "zinf", **more)

    def learner(
        self,
        kind: Callable[[], nn.Module],
        make_optimizer: Callable[[nn.Module], Optimizer] | None = None,
        **more: Any,
    ) -> Learner:
        """Return a new model with the weights that it always begins with, ready to be trained."""
        torch.manual_seed(0)
        model = kind().train()
        return Learner(self, model, self.compile(model, **more), (make_optimizer or adamw)(model))

    def see(self, *things: Any, label: str = "result") -> None:
        """Keep copies of tensors, numbers and lists of numbers."""
        for each in things:
            tensor = each if isinstance(each, Tensor) else torch.as_tensor(each)
            self.seen.append((label, tensor.detach().clone()))


class Learner:
    """A model under training in one run: the module, what is called for it, its optimizer."""

    def __init__(self, run: Run, model: nn.Module, call: Any, optimizer: Optimizer) -> None:
        self.run = run
        self.model: Any = model
        self.call = call
        self.optimizer = optimizer

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def step(self, loss: Any) -> None:
        """Train on ``loss`` and look at everything."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.run.see(loss, label="loss")
        self.see()

    def see(self) -> None:
        """Look at all weights, buffers, gradients and states."""
        self.see_weights()
        self.see_gradients()
        for name, parameter in self.model.named_parameters():
            for kind, state in self.optimizer.state.get(parameter, {}).items():
                if isinstance(state, Tensor):
                    self.run.see(state, label=f"{name}:{kind}")

    def see_weights(self) -> None:
        """Look at all weights and buffers."""
        for name, each in self.model.state_dict().items():
            self.run.see(each, label=name)

    def see_gradients(self) -> None:
        """Look at all gradients that there are."""
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                self.run.see(parameter.grad, label=f"{name}:grad")


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def x_of(seed: int, *shape: int) -> Tensor:
    """Return normal numbers that depend on ``seed`` and shape alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def words_of(seed: int, *shape: int, words: int = 61) -> Tensor:
    """Return words that depend on ``seed`` and shape alone."""
    return torch.randint(words, shape, generator=torch.Generator().manual_seed(seed))


def square(y: Any) -> Any:
    """Return the mean square of an output: a loss for all of it."""
    return y.float().square().mean()
