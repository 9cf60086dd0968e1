"""Unusual optimizers, modes and parametrizations: the bits of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo import config as dynamo_config
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)

from tests.e2e.sides import Compile, check_same, copies, in_file
from tests.limits.small import WIDTH, MakeOptimizer, Net, adamw, iterations, made, x_of
from zcompile.backend import Backend

# States made by torch's own step are in ordinary memory until they are moved, which is said.
pytestmark = pytest.mark.filterwarnings("ignore:.*outside the budget")


def trains(
    swap_dir: Path, kind: Callable[[], nn.Module] = Net, make: MakeOptimizer = adamw
) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(kind)
        return iterations(compile_model(model), model, make(model))

    check_same(script, swap_dir)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out((x.to(torch.complex64) @ self.turn).abs())
        return y


COMPLEX: tuple[Any, ...] = (AdamW, partial(SGD, lr=0.1, momentum=0.9), Adagrad)
RARER: tuple[Any, ...] = (Adadelta, RMSprop, Rprop, ASGD, Adamax, NAdam, RAdam)


@pytest.mark.parametrize(
    "kind", [*COMPLEX, *(pytest.param(each, marks=pytest.mark.slow) for each in RARER)]
)
def test_complex_parameters(kind: Any, swap_dir: Path) -> None:
    trains(swap_dir, Complex, lambda model: kind(model.parameters()))


def test_lbfgs(swap_dir: Path) -> None:
    trains(swap_dir, make=lambda model: LBFGS(model.parameters(), max_iter=3))


def test_muon(swap_dir: Path) -> None:
    trains(swap_dir, make=lambda model: Muon([p for p in model.parameters() if p.dim() == 2]))


def test_adafactor(swap_dir: Path) -> None:
    trains(swap_dir, make=lambda model: Adafactor(model.parameters()))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, WIDTH, sparse=True)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        y: Tensor = self.out(self.embed(words))
        return y


def sparse_sgd(model: Any) -> list[Any]:
    return [SGD(model.parameters(), lr=0.1)]


def sparse_adam(model: Any) -> list[Any]:
    return [SparseAdam(list(model.embed.parameters())), AdamW(model.out.parameters())]


def sparse_adagrad(model: Any) -> list[Any]:
    return [Adagrad(model.parameters())]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("make", [sparse_sgd, sparse_adam, sparse_adagrad])
def test_sparse_gradients(make: Callable[[Any], list[Any]], swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(Words)
        call, optimizers, seen = compile_model(model), make(model), list[Tensor]()
        for word in range(3):
            model.zero_grad()
            call(torch.tensor([1, 2, word])).square().mean().backward()
            assert model.embed.weight.grad.is_sparse
            for each in optimizers:
                each.step()
            seen += [each.detach().clone() for each in model.parameters()]
        return seen

    check_same(script, swap_dir)


def test_sparse_gradients_are_refused_by_the_optimizers_that_refuse_them(swap_dir: Path) -> None:
    model = made(Words)
    call, optimizer = in_file(model, swap_dir, Backend()), adamw(model)
    call(torch.tensor([1, 2])).square().mean().backward()
    before = [each.detach().clone() for each in model.parameters()]
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("kind", "option", "message"),
    [
        (AdamW, "capturable", "capturable=True"),
        (Adam, "differentiable", "a leaf Variable that requires grad"),
        (SGD, "differentiable", "a leaf Variable that requires grad"),
    ],
)
def test_options_that_torch_refuses(kind: Any, option: str, message: str, swap_dir: Path) -> None:
    """They are refused in plain PyTorch too; nothing has changed."""
    model = made()
    optimizer = kind(model.parameters(), **{option: True})
    in_file(model, swap_dir, Backend())(x_of()).square().mean().backward()
    before = [each.detach().clone() for each in model.parameters()]
    with pytest.raises((RuntimeError, AssertionError), match=message):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def normed(norm: Callable[[nn.Module], object]) -> nn.Module:
    model = Net()
    norm(model.up)
    return model


NORMS: dict[str, Callable[[nn.Module], object]] = {
    "weight": parametrizations.weight_norm,
    "spectral": parametrizations.spectral_norm,
    "pruned": partial(prune.l1_unstructured, name="weight", amount=0.3),
}


@pytest.mark.parametrize("name", NORMS)
def test_parametrizations(name: str, swap_dir: Path) -> None:
    trains(swap_dir, lambda: normed(NORMS[name]))


def test_a_parametrization_that_comes_and_goes(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made()
        call = compile_model(model)
        seen = iterations(call, model, adamw(model), 1)
        parametrizations.weight_norm(model.up)
        seen += iterations(call, model, adamw(model), 2)
        parametrize.remove_parametrizations(model.up, "weight")
        return seen + iterations(call, model, adamw(model), 1)

    check_same(script, swap_dir)


def test_requires_grad_changes_between_forward_and_backward(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made()
        call = compile_model(model)
        seen: list[Tensor] = []
        for wanted in (False, True):
            loss = call(x_of()).square().mean()
            model.up.weight.requires_grad_(wanted)
            loss.backward()
            seen += copies(model, loss)
        return seen

    check_same(script, swap_dir)


def test_compiled_autograd(swap_dir: Path) -> None:
    with dynamo_config.patch(compiled_autograd=True):
        trains(swap_dir)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_autograd_around_backward(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made()
        call = compile_model(model)
        call(x_of()).sum().backward()
        model.zero_grad()
        compiler: Any = torch.compile(backend="eager")
        enable: Any = compiled_autograd._enable  # pyright: ignore[reportPrivateUsage]
        with enable(compiler):
            return iterations(call, model, adamw(model), 2)

    check_same(script, swap_dir)


def test_deterministic_algorithms(swap_dir: Path) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        trains(swap_dir)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_detection(swap_dir: Path) -> None:
    with torch.autograd.detect_anomaly():
        trains(swap_dir)


def test_profiler(swap_dir: Path) -> None:
    with torch.profiler.profile(record_shapes=True, profile_memory=True):
        trains(swap_dir)


def test_default_device(swap_dir: Path) -> None:
    torch.set_default_device("cpu")
    try:
        trains(swap_dir)
    finally:
        torch.set_default_device(None)


def test_backward_under_autocast_of_a_forward_that_was_not(swap_dir: Path) -> None:
    """It gives the bits of a backward that PyTorch runs outside, as it wants to be asked to."""

    def script(compile_model: Compile) -> list[Tensor]:
        model = made(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)))
        call = compile_model(model)
        loss = call(x_of()[None]).square().mean()
        with torch.autocast("cpu", torch.bfloat16, enabled=call is not model):
            loss.backward()
        return copies(model)

    check_same(script, swap_dir)
