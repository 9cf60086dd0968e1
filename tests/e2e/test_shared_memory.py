"""Parameters whose memory others hold too, or whose place others take for a while."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from tests.e2e.sides import Compile, check_same, copies

WIDTH = 64

LINEARS = (0, 2, 4)


def _same(x: Tensor) -> Tensor:
    return x


not_captured: Callable[[Tensor], Tensor] = cast("Any", torch.compiler.disable)(_same)
"""Breaks the graph around it."""


class Tied(nn.Module):
    """Two parameters over one storage, each in a graph of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.up.weight = nn.Parameter(self.down.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.down(x))
        x = not_captured(x)  # breaks the graph
        y: Tensor = self.up(x)
        return y


class Rows(nn.Module):
    """A buffer that is a view of a weight."""

    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("rows", self.linear.weight.data[:8])

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * self.rows.sum()


class Overlapping(nn.Module):
    """Parameters cut out of one block of memory, the last one transposed."""

    def __init__(self) -> None:
        super().__init__()
        block = torch.randn(3 * WIDTH * WIDTH) * 0.1
        first, second, third = (
            block.narrow(0, at, WIDTH * WIDTH).view(WIDTH, WIDTH) for at in (0, 2048, 8192)
        )
        self.first, self.second = nn.Parameter(first), nn.Parameter(second)
        self.third = nn.Parameter(third.t())

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(torch.tanh(x @ self.first) @ self.second) @ self.third


def stacked() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8)
    )


def linear(model: nn.Sequential, at: int) -> nn.Linear:
    found = model[at]
    assert isinstance(found, nn.Linear)
    return found


def trained(call: Any, model: nn.Module, steps: int = 3) -> list[Tensor]:
    """Train ``model`` with a new optimizer; return the losses and everything of the model."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.linspace(-1, 1, 8 * WIDTH).view(8, WIDTH)
    losses: list[Tensor] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = call(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return copies(model, *losses)


@pytest.mark.parametrize("kind", [Tied, Rows, Overlapping])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at it
@pytest.mark.filterwarnings("ignore:.*made .* bytes of states in ordinary memory")
def test_what_is_tied_stays_tied(kind: Callable[[], nn.Module], swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        torch.manual_seed(0)
        model = kind()
        return trained(compile_model(model), model)

    check_same(script, swap_dir)


def test_what_a_script_holds_over_a_parameter_goes_with_it(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = stacked()
        call, row = compile_model(model), linear(model, 0).weight.detach()[3]
        state = model.state_dict()
        seen = trained(call, model) + [each.clone() for each in state.values()]
        row.zero_()
        return seen + trained(call, model) + [row]

    check_same(script, swap_dir)


def test_parameters_that_come_back(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = stacked()
        call, own = compile_model(model), [linear(model, at).weight for at in LINEARS]
        seen = trained(call, model)
        for at, weight in zip(LINEARS, own, strict=True):
            linear(model, at).weight = nn.Parameter(weight.detach() * 0.5)
        seen += trained(call, model)
        for at, weight in zip(LINEARS, own, strict=True):
            linear(model, at).weight = weight
        gc.collect()
        return seen + trained(call, model)

    check_same(script, swap_dir)


def test_saved_tensors_are_copied_for_a_while(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = stacked()
        call = compile_model(model)
        seen = trained(call, model)
        for _ in range(2):
            with torch.autograd.graph.saved_tensors_hooks(Tensor.clone, lambda saved: saved):
                seen += trained(call, model)
            seen += trained(call, model)
        return seen

    check_same(script, swap_dir)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # Dynamo looks at it
@pytest.mark.filterwarnings("ignore:.*made .* bytes of states in ordinary memory")
def test_what_was_tied_and_is_no_more_goes_home_by_itself(swap_dir: Path) -> None:
    models: list[Tied] = []

    def script(compile_model: Compile) -> list[Tensor]:
        torch.manual_seed(0)
        model = Tied()
        models.append(model)
        call = compile_model(model)
        seen = trained(call, model)
        model.up.weight.data = model.up.weight.data.clone()
        return seen + trained(call, model)

    (session,) = check_same(script, swap_dir)
    weights = models[-1].up.weight, models[-1].down.weight
    places = [session.machine.homes.find(each) for each in weights]
    assert None not in places
    assert places[0] != places[1]


@pytest.mark.filterwarnings("ignore:.* stay in ordinary memory")
def test_what_could_not_be_moved_goes_home_when_its_memory_is_another(swap_dir: Path) -> None:
    models: list[nn.Sequential] = []

    def script(compile_model: Compile) -> list[Tensor]:
        model = stacked()
        models.append(model)
        linear(model, 2).weight.data.share_memory_()
        call = compile_model(model)
        seen = trained(call, model)
        weight = linear(model, 2).weight
        weight.data = weight.data.clone()
        return seen + trained(call, model)

    (session,) = check_same(script, swap_dir)
    assert session.machine.homes.find(linear(models[-1], 2).weight) is not None
