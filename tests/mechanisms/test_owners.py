"""Whose session it is: what was compiled, by its identity, whichever way it was compiled."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

import zcompile
from tests.e2e.nets import WIDTH, Net, made, step, x_of
from tests.e2e.sides import check_same, copies, in_file
from tests.mechanisms.at_home import check_in_file
from zcompile.backend import Backend, zinf_backend
from zcompile.ir import Role

Compile = Callable[[Any], Any]


def train(call: Any, parameters: Iterable[Tensor], number: int = 3) -> list[Tensor]:
    """Train by ``call`` of an input to its loss; return weights, gradients and states."""
    held = list(parameters)
    optimizer = AdamW([each for each in held if each.requires_grad], lr=1e-2)
    seen: list[Tensor] = []
    for seed in range(number):
        optimizer.zero_grad()
        loss = call(x_of(seed))
        loss.backward()
        optimizer.step()
        states = [each["exp_avg"] for each in optimizer.state.values()]
        grads = [each.grad for each in held if each.grad is not None]
        seen += [each.detach().clone() for each in (loss, *held, *grads, *states)]
    return seen


class Alike(Net):
    """Any two are equal, as modules are that are compared by their configurations."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 7


def test_modules_that_call_themselves_equal_have_a_session_each(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        models = [made(Alike), made(Alike)]
        calls = [compile_model(each) for each in models]
        optimizers = [AdamW(each.parameters(), lr=1e-2) for each in models]
        return [
            tensor
            for seed in range(3)
            for call, model, optimizer in zip(calls, models, optimizers, strict=True)
            for tensor in step(call, model, optimizer, seed)
        ]

    one, other = check_same(script, swap_dir)
    assert one is not other


class Critic:
    """No module, with two of them whose parameters have the same names."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.maker, self.judge = Net(), Net()
        self.weights = [*self.maker.parameters(), *self.judge.parameters()]

    def loss(self, x: Tensor) -> Any:
        return self.judge(self.maker(x)).square().mean()

    def __call__(self, x: Tensor) -> Any:
        return self.loss(x)


def the_method(critic: Critic) -> Any:
    return critic.loss


def the_object(critic: Critic) -> Any:
    return critic


def a_partial(critic: Critic) -> Any:
    def loss(maker: Any, judge: Any, x: Tensor) -> Any:
        return judge(maker(x)).square().mean()

    return functools.partial(loss, critic.maker, critic.judge)


def a_closure(critic: Critic) -> Any:
    maker, judge = critic.maker, critic.judge

    def loss(x: Tensor) -> Any:
        return judge(maker(x)).square().mean()

    return loss


def square_of(call: Any) -> Any:
    """Return what gives the loss for what ``call`` gives."""

    def loss(x: Tensor) -> Any:
        return call(x).square().mean()

    return loss


@pytest.mark.parametrize("what", [the_method, the_object, a_partial, a_closure])
def test_parameters_are_called_by_the_way_to_them(
    what: Callable[[Critic], Any], swap_dir: Path
) -> None:
    """Two models within one compiled thing: no two of their parameters are one value."""
    backend, plain, critic = Backend(), Critic(), Critic()
    call = in_file(what(critic), swap_dir, backend)
    want = train(plain.loss, plain.weights)
    got = train(call, critic.weights)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    (session,) = backend.all_sessions()
    check_in_file(session, critic.weights)
    names = [each.name for each in session.planner.values if each.role is Role.PARAMETER]
    assert len(set(names)) == len({id(each) for each in critic.weights})
    assert len({session.name_of(each) for each in critic.weights}) == len(names)


def options(swap_dir: Path) -> dict[str, Any]:
    return {"compute": "eager", "device_budget": "200KiB", "nvme_dir": str(swap_dir)}


def test_a_method_that_is_compiled_in_its_class_stands_for_each_object(swap_dir: Path) -> None:
    decorate: Any = torch.compile(backend="zinf", options=options(swap_dir))

    class Layer(Net):
        @decorate  # type: ignore[untyped-decorator]  # torch's
        def forward(self, x: Tensor) -> Any:
            return super().forward(x)

    @decorate
    class Whole(Net):
        pass

    class Trainer(Critic):
        @decorate  # type: ignore[untyped-decorator]
        def loss(self, x: Tensor) -> Any:
            return self.judge(self.maker(x)).square().mean()

    layers = [made(Layer), made(Layer), made(Whole), made(Whole)]
    for layer in layers:
        want = made(Net)
        got = train(square_of(layer), layer.parameters(), 2)
        plain = train(square_of(want), want.parameters(), 2)
        assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))
    trainers = [Trainer(), Trainer()]
    for trainer in trainers:
        train(trainer.loss, trainer.weights, 1)
    owners: list[Any] = [*layers, *trainers]
    sessions = [zinf_backend.sessions(each) for each in owners]
    assert [len(each) for each in sessions] == [1] * 6
    assert len({id(session) for (session,) in sessions}) == 6
    assert zcompile.stats(layers[0]).total == sessions[0][0].total()
    assert zcompile.stats(trainers[1].loss).total == sessions[5][0].total()


def test_a_relative_folder_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script changes its working directory between two graphs of a model."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    backend, model = Backend(), made(Net)
    call = in_file(model, Path("swap"), backend)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    step(call, model, optimizer, 0)
    os.chdir("elsewhere")
    with torch.no_grad():
        call(x_of(1, batch=7))
    step(call, model, optimizer, 2)
    (session,) = backend.sessions(model)
    assert session.options.nvme_dir == tmp_path / "swap"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert copies(model)[0].shape == (WIDTH, WIDTH)
