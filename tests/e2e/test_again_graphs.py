"""Handles in autograd's graphs are walked, kept, dropped and packed like what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint as torch_checkpoint

from tests.e2e.again import EAGER, dropped, handles, least_budget
from tests.e2e.jobs import compiled
from tests.e2e.sides import copies
from tests.e2e.test_activations import (
    BATCH,
    WIDTH,
    alike,
    batch,
    made,
    session_of,
)
from zcompile.backend import Backend

CHECKPOINT = cast("Any", torch_checkpoint.checkpoint)


def script(model: nn.Module, call: Callable[[Tensor], Any]) -> list[Tensor]:
    """Walk a graph twice, hold two at once, drop one that is never walked."""
    loss = call(batch(0)).square().mean()
    loss.backward(retain_graph=True)
    seen = copies(model, loss)
    loss.backward()
    seen += copies(model)
    first, second, unwalked = (call(batch(at)).square().mean() for at in (1, 2, 3))
    del unwalked
    second.backward()
    seen += copies(model)
    first.backward()
    return seen + copies(model)


def test_graphs_are_walked_twice_kept_and_dropped() -> None:
    plain = made(drop=0.0)
    want = script(plain, plain)
    torch.compiler.reset()
    backend, model = Backend(), made(drop=0.0)
    got = script(model, compiled(model, EAGER, backend))
    assert alike(got, want)
    assert dropped(session_of(backend, model))
    assert handles(backend) == 0


def test_a_graph_that_goes_takes_its_handle_along() -> None:
    backend, model = Backend(), made(drop=0.0)
    call = compiled(model, EAGER, backend)
    losses = [call(batch(seed)).square().mean() for seed in range(3)]
    assert handles(backend) == 3
    del losses[0]
    assert handles(backend) == 2
    losses.clear()
    assert handles(backend) == 0


def test_an_error_in_backward_loses_nothing() -> None:
    class Refused(Exception):
        pass

    def refuse(_: Tensor) -> None:
        raise Refused

    backend, model = Backend(), made(drop=0.0)
    call = compiled(model, EAGER, backend)
    result = call(batch(0))
    result.register_hook(refuse)
    with pytest.raises(Refused):
        result.square().mean().backward()
    del result
    plain = made(drop=0.0)
    plain(batch(1)).square().mean().backward()
    call(batch(1)).square().mean().backward()
    assert alike(copies(model), copies(plain))
    assert handles(backend) == 0


@pytest.mark.parametrize("pack", [Tensor.clone, Tensor.double], ids=["clone", "double"])
def test_hooks_on_saved_tensors_see_the_numbers(pack: Callable[[Tensor], Tensor]) -> None:
    backend, model = Backend(), made(drop=0.0)
    call = compiled(model, EAGER, backend)
    shapes: list[torch.Size] = []

    def packed(saved: Tensor) -> Tensor:
        shapes.append(saved.shape)
        return pack(saved)

    with torch.autograd.graph.saved_tensors_hooks(packed, Tensor.float):
        loss = call(batch(0)).square().mean()
    assert torch.Size((BATCH, 4 * WIDTH)) in shapes
    loss.backward()
    plain = made(drop=0.0)
    plain(batch(0)).square().mean().backward()
    assert alike(copies(model), copies(plain))
    call(batch(0)).square().mean().backward()  # and without hooks again
    plain(batch(0)).square().mean().backward()
    assert alike(copies(model), copies(plain))


def test_hooks_that_take_more_than_the_budget_are_told_of() -> None:
    make = partial(made, drop=0.0)
    budget = least_budget(make, compute="eager")
    model = make()
    call = compiled(model, {"compute": "eager", "device_budget": budget})
    with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, lambda each: each):
        loss = call(batch(0)).square().mean()
    with pytest.warns(UserWarning, match="hooks on saved tensors hold what backward would make"):
        loss.backward()
    plain = make()
    plain(batch(0)).square().mean().backward()
    assert alike(copies(model), copies(plain))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around(reentrant: bool) -> None:
    def run(model: nn.Module, call: Callable[[Tensor], Any]) -> list[Tensor]:
        x = batch(0).requires_grad_()
        y: Tensor = CHECKPOINT(call, x, use_reentrant=reentrant)
        y.square().mean().backward()
        assert x.grad is not None
        return [*copies(model), x.grad]

    plain, model, backend = made(drop=0.0), made(drop=0.0), Backend()
    want = run(plain, plain)
    assert alike(run(model, compiled(model, EAGER, backend)), want)
    assert handles(backend) == 0


class Ends(nn.Module):
    """Backward needs neither the first weight nor what comes in: their products are saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(BATCH, 4 * WIDTH))
        self.second = nn.Linear(4 * WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(torch.sin(self.first + x))
        return result


def ends() -> nn.Module:
    torch.manual_seed(0)
    return Ends()


@pytest.mark.parametrize("what", ["weight", "input"])
def test_what_is_needed_again_must_not_change(what: str) -> None:
    backend, model = Backend(), ends()
    call = compiled(model, EAGER, backend)
    x = torch.randn(BATCH, 4 * WIDTH)
    loss = call(x).square().mean()
    assert dropped(session_of(backend, model))
    with torch.no_grad():
        (x if what == "input" else model.get_parameter("first")).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert all(each.grad is None for each in model.parameters())


def test_what_autograd_saves_itself_is_checked_by_autograd() -> None:
    model = made(drop=0.0)
    loss = compiled(model, EAGER)(batch(0)).square().mean()
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
