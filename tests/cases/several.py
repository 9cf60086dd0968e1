"""Several models in one process and one folder, some of them over the same weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from tests.cases.nets import WIDTH, Stack, Tied
from tests.cases.run import Learner, Run, adamw, case, square, x_of


@case(refusals=2)
def two_of_a_class_see_other_batches(run: Run) -> None:
    """Dynamo shares what was compiled for the first, and compiles more for the second alone."""
    first, second = run.learner(Stack), run.learner(Stack)
    with torch.no_grad():
        second.model.layers[0].weight.mul_(2)
    for batch in (4, 5, 4):
        first.step(square(first.call(x_of(batch, 4, WIDTH))))
        second.step(square(second.call(x_of(batch, batch, WIDTH))))
    for learner in (first, second):
        learner.model.eval()
        with torch.no_grad():
            run.see(learner.call(x_of(9, 4, WIDTH)))
    first.step(square(first.call(x_of(9, 7, WIDTH))))


class _OverShared(nn.Module):
    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.encoder(x))
        return result


@case()
def two_models_share_an_encoder(run: Run) -> None:
    torch.manual_seed(0)
    encoder = Stack()
    models = nn.ModuleList([_OverShared(encoder, 3), _OverShared(encoder, 5)])
    calls = [run.compile(each) for each in models]
    learner = Learner(run, models, None, AdamW(models.parameters(), lr=1e-2))
    for seed in range(2):
        x = x_of(seed, 4, WIDTH)
        learner.step(square(calls[0](x)) + square(calls[1](x)))
        learner.step(square(calls[1](x)))
        learner.step(square(calls[0](x)))


@case()
def a_part_is_compiled_by_itself_too(run: Run) -> None:
    learner = run.learner(Tied)
    body = run.compile(learner.model.body)
    for seed in range(3):
        x = x_of(seed, 4, WIDTH)
        learner.step(square(learner.call(x)) + body(x).mean())


@case(slow=True)
def one_model_is_compiled_twice(run: Run) -> None:
    learner = run.learner(Stack)
    second = run.compile(learner.model)
    for seed in range(3):
        learner.step(square(learner.call(x_of(seed, 4, WIDTH))))
        learner.step(second(x_of(seed, 4, WIDTH)).mean())


@case(slow=True)
def blocks_are_compiled_one_by_one(run: Run) -> None:
    torch.manual_seed(0)
    blocks = nn.ModuleList(Stack(3) for _ in range(3))
    calls = [run.compile(each) for each in blocks]
    learner = Learner(run, blocks, None, adamw(blocks))
    for seed in range(3):
        x = x_of(seed, 4, WIDTH)
        for call in calls:
            x = x + call(x)
        learner.step(square(x))


@case(slow=True)
def a_student_learns_from_a_teacher_that_learns(run: Run) -> None:
    teacher, student = run.learner(lambda: Stack(6)), run.learner(Stack)
    for seed in range(3):
        x = x_of(seed, 4, WIDTH)
        said = teacher.call(x)
        loss = functional.mse_loss(student.call(x), said) + square(said)
        student.optimizer.zero_grad()
        teacher.step(loss)
        student.optimizer.step()
        student.see()


@case(slow=True)
def one_optimizer_steps_two_models(run: Run) -> None:
    first, second = run.learner(Stack), run.learner(lambda: Stack(5))
    optimizer = adamw(first.model)
    optimizer.add_param_group({"params": second.parameters, "lr": 1e-3, "weight_decay": 0.0})
    first.optimizer = second.optimizer = optimizer
    for seed in range(3):
        first.step(square(second.call(first.call(x_of(seed, 4, WIDTH)))))
        second.see()
