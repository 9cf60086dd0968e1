"""Training and evaluation in turn, sizes that change, and forwards that go different ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from tests.cases.nets import WIDTH, Stack
from tests.cases.run import Learner, Run, case, square, words_of, x_of


class _Normed(nn.Module):
    """A stack with batch statistics, one as a running mean and one over all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.drop(self.norm(self.body(x))))


def _step(learner: Learner, seed: int, batch: int = 4) -> None:
    learner.step(square(learner.call(x_of(seed, batch, WIDTH))))


@case(slow=True, refusals=4)
def evaluation_comes_first_and_sees_larger_batches(run: Run) -> None:
    learner = run.learner(_Normed)
    learner.model.eval()
    with torch.inference_mode():
        run.see(learner.call(x_of(9, 8, WIDTH)).clone())
    for seed in range(2):
        learner.model.train()
        _step(learner, seed)
        learner.model.eval()
        with torch.no_grad():
            run.see(learner.call(x_of(9, 16, WIDTH)))
        with torch.inference_mode():
            run.see(learner.call(x_of(9, 2, WIDTH)).clone())
        learner.model.train()
        with torch.no_grad():
            run.see(learner.call(x_of(9, 4, WIDTH)))


@case(slow=True, refusals=2)
def a_part_is_in_evaluation_mode_now_and_then(run: Run) -> None:
    learner = run.learner(_Normed)
    for seed in range(3):
        learner.model.norm.train(seed % 2 == 0)
        _step(learner, seed)


@case(slow=True, refusals=3)
def a_frozen_model_gives_gradients_to_its_input(run: Run) -> None:
    learner = run.learner(Stack)
    for seed in range(2):
        learner.model.eval().requires_grad_(False)
        x = x_of(seed, 4, WIDTH).requires_grad_()
        learner.call(x).sum().backward()
        run.see(x.grad)
        learner.model.train().requires_grad_(True)
        _step(learner, seed)


@case(slow=True, refusals=4)
def batches_are_empty_single_and_larger(run: Run) -> None:
    learner = run.learner(Stack)
    for seed, batch in enumerate((4, 1, 0, 3, 7)):
        learner.step(learner.call(x_of(seed, batch, WIDTH)).square().sum())


class _Speller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, WIDTH)
        self.body = Stack(3)
        self.out = nn.Linear(WIDTH, 61)

    def forward(self, words: Tensor) -> Any:
        return self.out(self.body(self.embed(words)))


@case(slow=True, refusals=4)
def sentences_are_of_any_length(run: Run) -> None:
    learner = run.learner(_Speller, dynamic=True)
    for seed, (batch, time) in enumerate(((2, 4), (3, 9), (1, 2), (5, 13))):
        words = words_of(seed, batch, time)
        scores = learner.call(words).flatten(0, 1)
        learner.step(functional.cross_entropy(scores, words.flatten()))


class _Nested(nn.Module):
    """Takes lists and keywords, returns dictionaries with a tensor in two places and a None."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()

    def forward(self, xs: list[Tensor], *, scale: float, extra: dict[str, Tensor]) -> Any:
        ys = [self.body(x) * scale for x in xs]
        return {"ys": ys, "none": None, "more": (extra["a"] + 1, ys[0].detach()), "again": ys[0]}


@case(refusals=4, slow=True)
def inputs_and_outputs_are_nested(run: Run) -> None:
    learner = run.learner(_Nested)
    for seed in range(3):
        xs = [x_of(10 * seed + at, 2 + at, WIDTH) for at in range(1 + seed % 2)]
        result = learner.call(xs, scale=1.0 + seed, extra={"a": x_of(seed, 2)})
        assert result["none"] is None
        assert result["again"] is result["ys"][0]
        run.see(*result["more"])
        learner.step(sum(square(each) for each in result["ys"]))


class _Branching(nn.Module):
    """Breaks into several graphs; data choose which, and weights are used on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.even, self.odd = (Stack(2) for _ in range(3))
        self.log: list[float] = []

    def forward(self, x: Tensor) -> Any:
        layers: Any = self.first.layers
        x = self.first(x) * layers[0].bias.sum().item()
        self.log.append(x.mean().item())
        chosen: Any = self.even if self.log[-1] > 0 else self.odd
        return self.first(chosen(x)) + chosen.layers[0].bias


@case(refusals=8)
def data_choose_the_way_through_a_broken_graph(run: Run) -> None:
    learner = run.learner(_Branching)
    for seed in range(4):
        _step(learner, seed)
    run.see(learner.model.log)


class _Routed(nn.Module):
    """Experts of which a call uses some; one is never used, and one layer not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 5)
        self.experts = nn.ModuleList(Stack(1) for _ in range(5))
        self.shared = nn.Parameter(torch.randn(5, WIDTH, WIDTH) * 0.1)
        self.idle = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, live: tuple[int, ...]) -> Any:
        scores = self.gate(x).softmax(-1)
        chosen = scores.topk(2, -1).indices
        for at in live:
            mask = (chosen == at).any(-1, keepdim=True)
            x = x + mask * (self.experts[at](x) @ self.shared[at]) * scores[:, at : at + 1]
        return x


def _route(learner: Learner) -> None:
    for seed, live in enumerate(((0, 1), (0, 1), (2,), (3, 0))):
        learner.step(square(learner.call(x_of(seed, 8, WIDTH), live)))


@case(slow=True, refusals=4)
def experts_learn_from_different_steps_on(run: Run) -> None:
    _route(run.learner(_Routed))


@case(slow=True, refusals=4)
def experts_rest_while_others_gain_momentum(run: Run) -> None:
    _route(
        run.learner(
            _Routed,
            lambda model: SGD(
                model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True
            ),
        )
    )
