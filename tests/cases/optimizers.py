"""Optimizers that are changed, exchanged and mixed, and runs that go on elsewhere."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, SGD, Adam, NAdam, Optimizer, RMSprop

from tests.cases.nets import WIDTH, Stack
from tests.cases.run import Learner, Run, adamw, case, square, x_of


def _step(learner: Learner, seed: int) -> None:
    learner.step(square(learner.call(x_of(seed, 4, WIDTH))))


def _in_groups(model: nn.Module) -> Optimizer:
    """Return Adam with decay for matrices, and a learning rate in a tensor for the rest."""
    parameters = list(model.parameters())
    decaying = [each for each in parameters if each.dim() > 1]
    others = [each for each in parameters if each.dim() < 2]
    return Adam(
        [
            {"params": decaying, "weight_decay": 0.1, "amsgrad": True},
            {"params": others, "lr": torch.tensor(0.1), "foreach": False},
        ],
        lr=1e-2,
    )


@case()
def settings_change_and_states_are_thrown_away(run: Run) -> None:
    learner = run.learner(Stack, _in_groups)
    learner.optimizer.step()  # nothing has a gradient yet
    for seed in range(5):
        _step(learner, seed)
        decaying, others = learner.optimizer.param_groups
        decaying["betas"] = (0.5 + 0.1 * seed, 0.9)
        others["lr"].mul_(0.5)
        match seed:
            case 1:
                decaying["maximize"] = True
            case 2:
                learner.optimizer.state.clear()
            case _:
                decaying["weight_decay"] = 0.0


_IN_TURN: list[Callable[[nn.Module], Optimizer]] = [
    lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9),
    lambda model: Adam(model.parameters(), amsgrad=True),
    lambda model: SGD(model.parameters(), lr=0.1),
    adamw,
]


@case(inductor=True)
def one_optimizer_takes_over_from_another(run: Run) -> None:
    learner = run.learner(Stack)
    _step(learner, 0)
    for number, make_optimizer in enumerate(_IN_TURN):
        learner.optimizer = make_optimizer(learner.model)
        for seed in range(2):
            _step(learner, 2 * number + seed)


@case(slow=True)
def several_optimizers_step_the_same_weights(run: Run) -> None:
    learner = run.learner(Stack)
    others = SGD(learner.parameters, lr=0.01, momentum=0.9), Adam(learner.parameters[:3], lr=1e-3)
    for seed in range(3):
        _step(learner, seed)
        for each in others:
            each.step()
        learner.see()


_FOREIGN: list[Callable[[nn.Module], Optimizer]] = [
    lambda model: RMSprop(model.parameters(), momentum=0.5),
    lambda model: NAdam(model.parameters()),
]


@case(slow=True, warns="made .* bytes of states in ordinary memory")
def optimizers_that_are_not_taken_over(run: Run) -> None:
    for make_optimizer in _FOREIGN:
        learner = run.learner(Stack, make_optimizer)
        for seed in range(2):
            _step(learner, seed)


@case(slow=True, warns="made .* bytes of states in ordinary memory")
def a_line_search_calls_the_model_as_often_as_it_likes(run: Run) -> None:
    learner = run.learner(
        Stack, lambda model: LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=2)
    )
    for seed in range(2):

        def closure(seed: int = seed) -> Any:
            learner.optimizer.zero_grad()
            loss = square(learner.call(x_of(seed, 4, WIDTH)))
            loss.backward()
            return loss

        run.see(learner.optimizer.step(closure))
        learner.see_weights()


@case(slow=True)
def a_run_is_resumed_before_its_first_forward(run: Run) -> None:
    straight, resumed = run.learner(Stack), run.learner(Stack)
    for seed in range(2):
        _step(straight, seed)
    saved = copy.deepcopy((straight.model.state_dict(), straight.optimizer.state_dict()))
    resumed.model.load_state_dict(saved[0])
    resumed.optimizer.load_state_dict(saved[1])
    for learner in (straight, resumed):
        for seed in range(2, 4):
            _step(learner, seed)
    ends = [[each.detach() for each in learner.parameters] for learner in (straight, resumed)]
    run.see(all(map(torch.equal, *ends)), label="the resumed run ends where the other does")


@case(slow=True)
def every_step_is_taken_in_a_thread_of_its_own(run: Run) -> None:
    learner = run.learner(Stack)
    for seed in range(3):
        failed: list[BaseException] = []

        def train(seed: int = seed, failed: list[BaseException] = failed) -> None:
            try:
                _step(learner, seed)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        for each in failed:
            raise each


def compiled_training_step(run: Run) -> None:
    """Compile forward, backward and step as one function."""
    torch.manual_seed(0)
    model = Stack()
    optimizer = adamw(model)
    learner = Learner(run, model, None, optimizer)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = square(model(x))
        loss.backward()
        optimizer.step()
        return loss

    call = run.compile(step)
    for seed in range(3):
        run.see(call(x_of(seed, 4, WIDTH)))
        learner.see()


def _over_the_first_half(model: nn.Module) -> Optimizer:
    parameters = list(model.parameters())
    return Adam(parameters[: len(parameters) // 2], lr=1e-2)


@case(slow=True)
def parameters_join_later_and_are_in_the_loss(run: Run) -> None:
    learner = run.learner(Stack, _over_the_first_half)
    for seed in range(4):
        if seed == 2:
            half = len(learner.parameters) // 2
            learner.optimizer.add_param_group({"params": learner.parameters[half:], "lr": 1e-3})
        penalty = sum(each.square().sum() for each in learner.parameters) * 0.01
        learner.step(square(learner.call(x_of(seed, 4, WIDTH))) + penalty)
