"""What models do that a captured graph must get right: bits are those of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.e2e.models import LanguageModel
from tests.e2e.nets import WIDTH, Net, loss_of, made, optimizer_of, step, x_of
from tests.e2e.sides import Compile, check_same, copies, in_file
from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.ir import Fetch, Role

# Dynamo looks for gradients of what crosses a graph break; it hides the warning from people only.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


class Counting(Net):
    """Changes buffers in place, in training and in evaluation differently."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.mean: Tensor
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = super().forward(x)
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


class Broken(Net):
    """Two graphs with eager code between them that reads weights, and writes one."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        x = between_graphs(self, x)
        result: Tensor = self.last(self.frozen(x))
        return result


def _eager_code(net: Net, x: Tensor) -> Tensor:
    with torch.no_grad():
        net.frozen.bias.mul_(0.9)
    return x * net.first.weight.detach().abs().sum() + net.last.bias


between_graphs: Callable[[Net, Tensor], Tensor] = cast("Any", torch.compiler.disable)(_eager_code)


@pytest.mark.parametrize("kind", [Net, Counting, Broken])
def test_a_module_trains_and_evaluates(kind: Callable[[], nn.Module], swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(kind)
        call, optimizer, seen = compile_model(model), optimizer_of(model), list[Tensor]()
        for seed in range(4):
            model.train()
            seen += step(call, model, optimizer, seed)
            model.eval()
            with torch.no_grad():
                seen += copies(model, call(x_of(7)))
            with torch.inference_mode():
                seen.append(call(x_of(8)).clone())
        return seen

    (session,) = check_same(script, swap_dir)
    trained = {each.name for each in session.planner.values if each.role is Role.GRADIENT}
    assert trained == {"first.weight:grad", "first.bias:grad", "last.bias:grad"}
    fetched = {
        step.value
        for planned in session.planned()
        for step in planned.schedule.steps
        if isinstance(step, Fetch)
    }
    assert {"first.weight", "frozen.weight"} <= fetched
    assert "last.weight" not in fetched


def test_each_graph_of_a_broken_model_has_its_schedule(swap_dir: Path) -> None:
    backend, model = Backend(), made(Broken)
    loss_of(in_file(model, swap_dir, backend), 0).backward()
    (session,) = backend.sessions(model)
    kinds = [planned.schedule.name.partition(".")[0] for planned in session.planned()]
    assert sorted(kinds) == ["backward", "backward", "forward", "forward"]


def test_larger_shapes_are_planned_anew(swap_dir: Path) -> None:
    lengths = (4, 9, 5, 14, 9)

    def script(compile_model: Compile) -> list[Tensor]:
        model = made(lambda: LanguageModel(16, 2))
        call, optimizer, seen = compile_model(model), optimizer_of(model), list[Tensor]()
        for length in lengths:
            words = torch.arange(2 * length).view(2, length) % 61
            optimizer.zero_grad()
            loss: Any = functional.cross_entropy(call(words).flatten(0, 1), words.flatten())
            loss.backward()
            optimizer.step()
            seen += copies(model, loss)
        return seen

    (session,) = check_same(script, swap_dir, dynamic=True)
    assert len(session.planned()) == 2


@pytest.mark.parametrize("first", [0, 1])
def test_batches_that_are_views_of_more(first: int, swap_dir: Path) -> None:
    """The bytes of what they are views of are a symbol of their own, which no argument is."""

    def script(compile_model: Compile) -> list[Tensor]:
        model = made(lambda: LanguageModel(16, 2))
        call, optimizer, seen = compile_model(model), optimizer_of(model), list[Tensor]()
        for rows, batch, length in ((9, 4, 8), (9, 2, 8), (12, 3, 7), (2, 2, 7)):
            words = (torch.arange(rows * length).view(rows, length) % 61)[first:][:batch]
            optimizer.zero_grad()
            scores = call(words[:, :-1])
            loss: Any = functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            seen += copies(model, loss)
        return seen

    check_same(script, swap_dir)


def test_a_shape_too_large_is_refused_and_others_go_on(swap_dir: Path) -> None:
    torch.manual_seed(0)
    backend, model = Backend(), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    call = in_file(model, swap_dir, backend, dynamic=True)
    before = call(x_of(0, 5))
    (session,) = backend.sessions(model)
    small_bytes = session.planned_peak_bytes
    call(x_of(0, 50))
    assert session.planned_peak_bytes > small_bytes
    with pytest.raises(BudgetError) as caught:
        call(torch.ones(100_000, WIDTH))
    assert caught.value.smallest_bytes > 8 << 20
    assert torch.equal(call(x_of(0, 5)), before)


def test_two_models_of_one_class_in_one_folder(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        models = [made(Net), made(Counting), made(Net)]
        with torch.no_grad():
            models[2].get_parameter("first.weight").mul_(2)
        calls = [compile_model(each) for each in models]
        optimizers = [optimizer_of(each) for each in models]
        seen: list[Tensor] = []
        for seed in range(3):
            for model, call, optimizer in zip(models, calls, optimizers, strict=True):
                seen += step(call, model, optimizer, seed)
        # Gradients of both from one backward.
        (loss_of(calls[0], 5) + loss_of(calls[2], 6)).backward()
        return seen + copies(models[0]) + copies(models[2])

    sessions = check_same(script, swap_dir)
    assert len(set(sessions)) == 3
    assert len(list(swap_dir.iterdir())) == 3
