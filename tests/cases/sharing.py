"""Weights that are met twice, and memory that is another tensor's too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.cases.nets import WIDTH, Stack, Tied
from tests.cases.run import Run, adamw, case, square, words_of, x_of


class _TwoSides(torch.autograd.Function):
    """``x @ a + x @ b.t()`` by a rule of its own; both are the same weight below."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, a, b)
        return x @ a + x @ b.t()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, Tensor]:
        (grad,) = grads
        x, a, b = ctx.saved_tensors
        return grad @ a.t() + grad @ b, x.t() @ grad, grad.t() @ x


class _GivenTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.1)

    def forward(self, x: Tensor) -> Any:
        return _TwoSides.apply(self.body(x), self.weight, self.weight)  # type: ignore[no-untyped-call]  # torch's


@case()
def one_weight_is_given_to_a_function_twice(run: Run) -> None:
    learner = run.learner(_GivenTwice)
    for seed in range(3):
        learner.step(square(learner.call(x_of(seed, 4, WIDTH))))


class _Mirror(nn.Module):
    """Decodes by the transposes of what has encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) * 0.1 for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        for weight in reversed(list(self.weights)):
            x = torch.tanh(x @ weight.t())
        return x


@case(slow=True)
def a_decoder_is_the_transposed_encoder(run: Run) -> None:
    learner = run.learner(_Mirror)
    for seed in range(3):
        learner.step(square(learner.call(x_of(seed, 4, WIDTH))))


class _Grown(nn.Module):
    """A head put together from slices of the embedding and some rows of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, WIDTH)
        self.body = Stack()
        self.more = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, words: Tensor) -> Any:
        rows = torch.cat([self.embed.weight[:20], self.more, self.embed.weight[40:]])
        return self.body(self.embed(words)) @ rows.t()


@case(slow=True)
def a_head_is_made_of_slices_of_the_embedding(run: Run) -> None:
    learner = run.learner(_Grown)
    for seed in range(3):
        learner.step(square(learner.call(words_of(seed, 2, 5))))


@case()
def weights_are_tied_and_untied_between_steps(run: Run) -> None:
    learner = run.learner(Tied)
    learner.step(square(learner.call(x_of(0, 4, WIDTH))))
    first, last = learner.model.first, learner.model.last
    last.weight = nn.Parameter(first.weight.detach().clone())
    learner.optimizer = adamw(learner.model)
    for seed in range(1, 3):
        learner.step(square(learner.call(x_of(seed, 4, WIDTH))))
    last.weight = first.weight
    learner.optimizer = adamw(learner.model)
    for seed in range(3, 5):
        learner.step(square(learner.call(x_of(seed, 4, WIDTH))))


class _Clamped(nn.Module):
    """Writes weights inside forward, before and after their use."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()

    def forward(self, x: Tensor) -> Tensor:
        layers: Any = self.body.layers
        with torch.no_grad():
            for layer in layers:
                layer.weight.clamp_(-0.1, 0.1)
        x = self.body(x)
        with torch.no_grad():
            layers[1].bias.mul_(0.5)
        return x


@case(inductor=True)
def forward_writes_weights(run: Run) -> None:
    learner = run.learner(_Clamped)
    for seed in range(3):
        learner.step(square(learner.call(x_of(seed, 4, WIDTH))))
    with torch.no_grad():
        run.see(learner.call(x_of(9, 4, WIDTH)))
    learner.see()


class _Renormed(nn.Module):
    """An embedding whose rows are scaled down in place when they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, WIDTH, max_norm=0.5)
        self.body = Stack()

    def forward(self, words: Tensor) -> Any:
        return self.body(self.embed(words))


@case(slow=True)
def an_embedding_keeps_its_rows_short(run: Run) -> None:
    learner = run.learner(_Renormed)
    for seed in range(3):
        learner.step(square(learner.call(words_of(seed, 2, 5))))


class _Open(nn.Module):
    """Returns weights and views of weights beside its result."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        layers: Any = self.body.layers
        return self.body(x), layers[0].weight, layers[1].weight.t(), layers[2].weight[1]


@case()
def forward_returns_weights(run: Run) -> None:
    learner = run.learner(_Open)
    kept: list[Tensor] = []
    for seed in range(3):
        results = learner.call(x_of(seed, 4, WIDTH))
        kept += results
        learner.step(square(results[0]) + sum(each.sum() for each in results[1:]))
    run.see(*kept)


class _Foreign(nn.Module):
    """Takes a weight as an argument, and returns a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()

    def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return functional.linear(self.body(x * 1), weight), x.view(-1)


@case()
def a_parameter_comes_as_an_argument(run: Run) -> None:
    learner = run.learner(_Foreign)
    weight = nn.Parameter(x_of(7, WIDTH, WIDTH))
    learner.optimizer.add_param_group({"params": [weight]})
    for seed in range(3):
        x = x_of(seed, 4, WIDTH)
        y, flat = learner.call(x, weight)
        flat.add_(1)
        learner.step(square(y))
        run.see(x, weight, weight.grad)
