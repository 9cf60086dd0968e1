"""More than one backward before a step, and more than one optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, SequentialLR

from tests.loops.nets import GRADIENT_OF_NO_LEAF, WIDTH, Layers, adamw, square_loss, step, x_of
from tests.loops.playing import Run, check_loop


@pytest.mark.parametrize("to_none", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_accumulate_over_micro_batches(to_none: bool, swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters(), weight_decay=0.1)
        schedule = LambdaLR(optimizer, lambda count: 1 / (1 + count))
        for number in range(3):
            optimizer.zero_grad(set_to_none=to_none)
            for part in range(3):
                loss = square_loss(call, 10 * number + part) / 3
                loss.backward()
                run.see_all(model)
            run.see("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            optimizer.step()
            schedule.step()
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


class TwoHeads(nn.Module):
    """A trunk with two heads, of which a call wants one or both."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Layers(3)
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 7)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x)
        return self.left(x), self.right(x)


@pytest.mark.parametrize("at_once", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_losses_of_one_trunk(at_once: bool, swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = TwoHeads()
        call, optimizer = run.compile(model), adamw(model.parameters())
        for seed in range(3):
            optimizer.zero_grad(set_to_none=False)
            left, right = call(x_of(seed))
            square: Any = left.square().mean()
            cross: Any = functional.cross_entropy(right, torch.arange(5))
            if at_once:
                (square + 0.5 * cross).backward()
            else:
                square.backward(retain_graph=True)
                # The head that is not reached has zeros from AOTAutograd, whoever compiles.
                run.see_all(model.trunk)
                cross.backward()
            run.see("losses", square, cross)
            optimizer.step()
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


@pytest.mark.slow
def test_one_loss_is_walked_twice(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), SGD(model.parameters(), lr=0.1, momentum=0.9)
        for seed in range(3):
            optimizer.zero_grad()
            loss = square_loss(call, seed)
            loss.backward(retain_graph=True)
            run.see_all(model, optimizer)
            loss.backward()
            optimizer.step()
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


@pytest.mark.filterwarnings(GRADIENT_OF_NO_LEAF)
def test_a_generator_and_a_discriminator(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        maker, judge = Layers(3), nn.Sequential(Layers(3), nn.Linear(WIDTH, 1))
        make, look = run.compile(maker), run.compile(judge)
        makers = Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.999))
        judges = Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.999))
        ones, zeros = torch.ones(5, 1), torch.zeros(5, 1)
        judged: Any = functional.binary_cross_entropy_with_logits
        for seed in range(3):
            made = make(x_of(seed))
            judges.zero_grad()
            real = judged(look(x_of(seed + 100)), ones)
            fake = judged(look(made.detach()), zeros)
            (real + fake).backward()
            judges.step()
            run.see("judge", real, fake)
            run.see_all(judge, judges)
            makers.zero_grad()
            fooled = judged(look(made), ones)  # leaves gradients in the judge too
            fooled.backward()
            makers.step()
            run.see("maker", fooled)
            run.see_all(maker, makers)
            run.see_all(judge, judges)

    check_loop(loop, swap_dir)


def test_groups_of_parameters_and_schedules(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        matrices = [each for each in model.parameters() if each.dim() > 1]
        others = [each for each in model.parameters() if each.dim() < 2]
        groups = [
            {"params": matrices[:2], "weight_decay": 0.1, "lr": 1e-2},
            {"params": matrices[2:], "amsgrad": True},
            {"params": others, "betas": (0.8, 0.9), "lr": torch.tensor(3e-3)},
        ]
        call, optimizer = run.compile(model), adamw(groups, foreach=False)
        warm = LambdaLR(optimizer, lambda count: min(1.0, (count + 1) / 2))
        cool = CosineAnnealingLR(optimizer, T_max=4)
        schedule = SequentialLR(optimizer, [warm, cool], milestones=[2])
        for seed in range(4):
            step(run, call, model, optimizer, seed)
            nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            schedule.step()

    check_loop(loop, swap_dir)
