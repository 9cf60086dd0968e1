"""Errors in the middle of an iteration, after which training goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tests.e2e.looking import Observed, looking
from tests.loops.nets import WIDTH, Layers, adamw, square_loss, step, x_of
from tests.loops.playing import Run, TightRun, check_loop


class Interrupted(Exception):
    """What a user's code raises in the middle of an iteration."""


@pytest.mark.parametrize(
    "kind", [pytest.param(Interrupted, marks=pytest.mark.slow), KeyboardInterrupt]
)
@pytest.mark.parametrize("at", [pytest.param(2, marks=pytest.mark.slow), 6])
def test_in_a_graph(at: int, kind: type[BaseException], swap_dir: Path) -> None:
    """The error comes out of an operation in the middle of forward (2) or of backward (6)."""

    def loop(run: Run) -> None:
        model = Observed(WIDTH, 4)
        call, optimizer = run.compile(model), adamw(model.parameters())
        step(run, call, model, optimizer, 0)
        for _ in range(2):
            left = iter(range(at + 1))

            def interrupt(left: Any = left) -> None:
                if next(left) == at:
                    raise kind

            with looking(interrupt), pytest.raises(kind):
                square_loss(call, 1).backward()
            optimizer.zero_grad()
        for seed in range(2, 4):
            step(run, call, model, optimizer, seed)

    check_loop(loop, swap_dir)


Raise = Callable[..., None]


def weight_of(model: Layers) -> Any:
    return model.layers[1].weight


def with_a_forward_hook(call: Any, _model: Layers, _optimizer: Optimizer, raise_it: Raise) -> Any:
    return call.register_forward_hook(raise_it)


def with_a_gradient_hook(_call: Any, model: Layers, _: object, raise_it: Raise) -> Any:
    return weight_of(model).register_hook(raise_it)


def with_an_accumulation_hook(_call: Any, model: Layers, _: Optimizer, raise_it: Raise) -> Any:
    return weight_of(model).register_post_accumulate_grad_hook(raise_it)


def before_the_step(_call: Any, _: Layers, optimizer: Optimizer, raise_it: Raise) -> Any:
    return optimizer.register_step_pre_hook(raise_it)


def after_the_step(_call: Any, _: Layers, optimizer: Optimizer, raise_it: Raise) -> Any:
    return optimizer.register_step_post_hook(raise_it)


def iterate(call: Any, optimizer: Optimizer) -> None:
    square_loss(call, 1).backward()
    optimizer.step()


@pytest.mark.parametrize(
    "where",
    [
        with_a_forward_hook,
        with_a_gradient_hook,
        with_an_accumulation_hook,
        before_the_step,
        after_the_step,
    ],
)
@pytest.mark.parametrize(
    "kind", [Interrupted, pytest.param(KeyboardInterrupt, marks=pytest.mark.slow)]
)
def test_in_a_hook(where: Any, kind: type[BaseException], swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters())
        step(run, call, model, optimizer, 0)

        def raise_it(*_: object) -> None:
            raise kind

        handle = where(call, model, optimizer, raise_it)
        with pytest.raises(kind):
            iterate(call, optimizer)
        handle.remove()
        for each in model.parameters():
            run.see("weight after the error", each)
        optimizer.zero_grad()
        for seed in range(2, 4):
            step(run, call, model, optimizer, seed)

    check_loop(loop, swap_dir)


def test_in_the_closure_of_a_step(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters())

        def closure(seed: int, *, fails: bool) -> Any:
            optimizer.zero_grad()
            loss = square_loss(call, seed)
            loss.backward()
            if fails:
                raise Interrupted
            return loss

        # Called before the first step begins: then the states are made at home.
        run.see("before", call(x_of(7)))
        for seed in range(4):
            fails = seed == 2
            if fails:
                with pytest.raises(Interrupted):
                    optimizer.step(lambda: closure(2, fails=True))
            else:
                run.see("loss", optimizer.step(lambda seed=seed: closure(seed, fails=False)))
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


def test_a_batch_of_another_shape_that_fails(swap_dir: Path) -> None:
    """It fails while it is traced, so nothing of it is planned."""

    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters())
        step(run, call, model, optimizer, 0)
        with pytest.raises(Exception, match=r"shapes cannot be multiplied|mat1 and mat2|size"):
            call(torch.ones(5, WIDTH + 1))
        step(run, call, model, optimizer, 1)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        run.see("larger", call(x_of(3, batch=11)))
        step(run, call, model, optimizer, 2)

    check_loop(loop, swap_dir)


def test_the_first_call_in_the_closure_of_a_step(swap_dir: Path) -> None:
    """Nobody has told this step of the model: torch makes its states, which go home after it."""

    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters())

        def closure() -> Any:
            optimizer.zero_grad()
            loss = square_loss(call, 0)
            loss.backward()
            return loss

        if isinstance(run, TightRun):
            with pytest.warns(
                UserWarning, match="in steps that begin after the model has been called"
            ):
                optimizer.step(closure)
        else:
            optimizer.step(closure)
        run.see_all(model, optimizer)
        step(run, call, model, optimizer, 1)

    check_loop(loop, swap_dir)
