"""Weights that are written, replaced, copied and averaged between steps."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, prune, vector_to_parameters
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.cases.nets import WIDTH, Stack, Tied
from tests.cases.run import Learner, Run, adamw, case, square, x_of

_PRUNE: Any = prune
_EMA: Any = get_ema_multi_avg_fn


def _step(learner: Learner, seed: int) -> None:
    learner.step(square(learner.call(x_of(seed, 4, WIDTH))))


@case()
def weights_become_views_of_one_vector(run: Run) -> None:
    learner = run.learner(Stack)
    for seed in range(3):
        _step(learner, seed)
        vector = parameters_to_vector(learner.parameters)
        run.see(vector)
        vector_to_parameters(vector.detach() * 0.9, learner.parameters)
        learner.see_weights()
    _step(learner, 7)


@case()
def weights_are_swapped_replaced_and_reset(run: Run) -> None:
    learner = run.learner(Stack)
    layers = learner.model.layers
    for seed in range(5):
        _step(learner, seed)
        match seed:
            case 0:
                layers[0].reset_parameters()
            case 1:
                a, b = layers[1].weight, layers[2].weight
                a.data, b.data = b.data, a.data
            case 2:
                for each in learner.parameters:
                    each.data = each.data.clone() + 0.1
            case _:
                layers[1].weight, layers[3].weight = layers[3].weight, layers[1].weight


@case(slow=True)
def weights_are_read_and_written_through_numpy(run: Run) -> None:
    learner = run.learner(Stack)
    weights = [each.weight for each in learner.model.layers]
    for seed in range(3):
        _step(learner, seed)
        run.see(torch.from_numpy(weights[0].detach().numpy().copy()), weights[1][3, 4].item())
        run.see([each.norm().item() for each in learner.parameters])
        weights[1].detach().numpy()[0, :] = seed


@case(slow=True)
def weights_climb_before_they_descend(run: Run) -> None:
    """Two passes a step, with weights moved up the gradient and back between them."""
    learner = run.learner(Stack)
    for seed in range(3):
        learner.optimizer.zero_grad()
        square(learner.call(x_of(seed, 4, WIDTH))).backward()
        ascents = [each.grad * 0.05 for each in learner.parameters if each.grad is not None]
        with torch.no_grad():
            for each, ascent in zip(learner.parameters, ascents, strict=True):
                each.add_(ascent)
        learner.optimizer.zero_grad()
        square(learner.call(x_of(seed, 4, WIDTH))).backward()
        with torch.no_grad():
            for each, ascent in zip(learner.parameters, ascents, strict=True):
                each.sub_(ascent)
        learner.optimizer.step()
        learner.see()


@case(slow=True)
def a_layer_is_pruned_for_a_while(run: Run) -> None:
    learner = run.learner(Stack)
    _step(learner, 0)
    _PRUNE.l1_unstructured(learner.model.layers[1], "weight", amount=0.5)
    learner.optimizer = adamw(learner.model)
    _step(learner, 1)
    _step(learner, 2)
    _PRUNE.remove(learner.model.layers[1], "weight")
    learner.optimizer = adamw(learner.model)
    _step(learner, 3)


@case(slow=True)
def averages_follow_the_weights(run: Run) -> None:
    learner = run.learner(Stack)
    averages: list[Any] = [
        AveragedModel(learner.model),
        AveragedModel(learner.model, multi_avg_fn=_EMA(0.9)),
    ]
    for seed in range(4):
        _step(learner, seed)
        for each in averages:
            each.update_parameters(learner.model)
            run.see(*each.parameters())
    call = run.compile(averages[1].module)
    with torch.no_grad():
        run.see(call(x_of(9, 4, WIDTH)))


@case(slow=True)
def a_copy_of_what_was_compiled_follows_it(run: Run) -> None:
    learner = run.learner(Stack)
    _step(learner, 0)
    follower = copy.deepcopy(learner.call).eval().requires_grad_(False)
    for seed in range(1, 4):
        _step(learner, seed)
        with torch.no_grad():
            for mine, theirs in zip(follower.parameters(), learner.parameters, strict=True):
                mine.lerp_(theirs, 0.1)
            run.see(follower(x_of(9, 4, WIDTH)), *follower.state_dict().values())


@case(slow=True)
def model_and_optimizer_are_copied_together(run: Run) -> None:
    learner = run.learner(Stack)
    _step(learner, 0)
    model, optimizer = copy.deepcopy((learner.model, learner.optimizer))
    other = Learner(run, model, run.compile(model), optimizer)
    for seed in range(2):
        _step(learner, seed)
        _step(other, seed + 5)
        learner.see()


@case()
def everything_is_saved_and_loaded(run: Run) -> None:
    learner = run.learner(Tied)
    _step(learner, 0)
    file = io.BytesIO()
    saved = {
        "model": learner.call.state_dict(),
        "optimizer": learner.optimizer.state_dict(),
        "whole": learner.model,
    }
    torch.save(saved, file)
    run.see(file.tell() < 500_000, label="no more than what is there")
    one = io.BytesIO()
    torch.save(learner.model.first.weight, one)
    run.see(one.tell() < WIDTH * WIDTH * 4 + 3000, label="one weight alone")
    _step(learner, 1)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    whole: Any = loaded["whole"]
    run.see(whole(x_of(9, 4, WIDTH)), whole.first.weight is whole.last.weight)
    learner.call.load_state_dict(loaded["model"])
    learner.optimizer.load_state_dict(loaded["optimizer"])
    learner.see()
    _step(learner, 1)


@case(slow=True)
def a_run_goes_on_in_the_middle_of_an_accumulation(run: Run) -> None:
    learner = run.learner(Stack)
    _step(learner, 0)
    learner.optimizer.zero_grad()
    square(learner.call(x_of(1, 4, WIDTH))).backward()
    saved = copy.deepcopy((learner.model.state_dict(), learner.optimizer.state_dict()))
    square(learner.call(x_of(2, 4, WIDTH))).backward()
    learner.model.load_state_dict(saved[0])
    learner.optimizer.load_state_dict(saved[1])
    learner.see()
    _step(learner, 3)


class _Adapted(nn.Module):
    """A frozen matrix with a small product beside it, that can be merged into it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)
        self.merged = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        return torch.tanh(y if self.merged else y + self.up(self.down(x)))

    def merge(self, sign: int) -> None:
        self.base.weight.data += sign * (self.up.weight @ self.down.weight).detach()
        self.merged = sign > 0


class _Adapters(Stack):
    def __init__(self) -> None:
        super().__init__(0)
        self.layers = nn.ModuleList(_Adapted() for _ in range(4))


@case(slow=True, refusals=2)
def adapters_are_merged_into_a_frozen_base_and_taken_out(run: Run) -> None:
    learner = run.learner(_Adapters)
    for seed in range(3):
        _step(learner, seed)
        for each in learner.model.layers:
            each.merge(1)
        with torch.no_grad():
            run.see(learner.call(x_of(9, 4, WIDTH)))
        for each in learner.model.layers:
            each.merge(-1)


@case(slow=True, refusals=3)
def weights_are_frozen_and_thawed(run: Run) -> None:
    learner = run.learner(_Adapters, lambda model: adamw(nn.ModuleList([model])))
    _step(learner, 0)
    bases = [each.base.weight for each in learner.model.layers]
    for each in bases:
        each.requires_grad_(True)
    _step(learner, 1)
    for each in bases[:2]:
        each.requires_grad_(False)
        each.grad = None
    _step(learner, 2)
