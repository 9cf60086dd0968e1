"""Higher derivatives, functional transforms, tracing: right, or refused in one error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, func

from tests.e2e.sides import Compile, check_same, copies, in_file
from tests.limits.small import made, x_of
from zcompile.backend import Backend

# torch's own derivatives of forward mode are scripts.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

Transform = Callable[[Any], Any]

forward_ad: Any = torch.autograd.forward_ad

TRANSFORMS: dict[str, Transform] = {
    "vmap": lambda call: func.vmap(call)(torch.stack([x_of(0), x_of(1)])),
    "grad": lambda call: func.grad(_sum_of(call))(x_of()),
    "jvp": lambda call: torch.stack(func.jvp(call, (x_of(),), (x_of(1),))),
    "jacrev": lambda call: func.jacrev(call)(x_of()),
}


def _sum_of(call: Any) -> Callable[[Tensor], Any]:
    def loss(x: Tensor) -> Any:
        return call(x).square().sum()

    return loss


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_functional_transform_of_the_compiled_model(name: str, swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        call = compile_model(made())
        call(x_of())
        return [TRANSFORMS[name](call).detach()]

    check_same(script, swap_dir)


def test_a_functional_transform_inside_what_is_compiled(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made()
        mapped: Any = compile_model(_Mapped(model))
        y = mapped(torch.stack([x_of(0), x_of(1)]))
        y.square().mean().backward()
        return copies(model, y)

    check_same(script, swap_dir)


class _Mapped(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", func.vmap(self.inner)(x))


def test_functional_call(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made()
        call = compile_model(model)
        call(x_of())
        names = [name for name, _ in call.named_parameters()]
        doubled = {
            name: each.detach() * 2 for name, each in zip(names, model.parameters(), strict=True)
        }

        def loss(parameters: dict[str, Tensor]) -> Tensor:
            y: Any = func.functional_call(call, parameters, (x_of(),))
            return cast("Tensor", y.square().sum())

        gradients: Any = func.grad(loss)(doubled)
        return [loss(doubled), *gradients.values()]

    check_same(script, swap_dir)


def test_create_graph_without_a_second_backward(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made()
        compile_model(model)(x_of()).square().sum().backward(create_graph=True)
        return copies(model)

    torch.set_warn_always(True)  # else it warns once in a process, whoever comes first
    try:
        with pytest.warns(UserWarning, match="Using backward\\(\\) with create_graph=True"):
            check_same(script, swap_dir)
    finally:
        torch.set_warn_always(False)


def test_double_backward(swap_dir: Path) -> None:
    model = made()
    call, x = in_file(model, swap_dir, Backend()), x_of().requires_grad_()
    slope: Any = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        slope.square().sum().backward()
    assert all(each.grad is None for each in model.parameters())
    # The remedy: the module itself.
    slope = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)[0]
    slope.square().sum().backward()
    assert model.up.weight.grad is not None


@pytest.mark.parametrize("frozen", [False, True])
def test_forward_mode(frozen: bool, swap_dir: Path) -> None:
    model = made().requires_grad_(not frozen)
    call = in_file(model, swap_dir, Backend())
    want = call(x_of()).detach()
    with forward_ad.dual_level():
        with pytest.raises(ValueError, match=r"forward-mode .* call the module itself"):
            call(forward_ad.make_dual(x_of(), x_of(1)))
        tangent = forward_ad.unpack_dual(model(forward_ad.make_dual(x_of(), x_of(1)))).tangent
        assert tangent is not None
        assert torch.equal(call(x_of()).detach(), want), "without a dual number it goes on"


def test_jit_trace(swap_dir: Path) -> None:
    model = made()
    call = in_file(model, swap_dir, Backend())
    want = call(x_of()).detach()
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace a dynamo-optimized function"):
        _traced(call)
    assert torch.equal(_traced(model)(x_of()).detach(), want)


def _traced(call: Any) -> Any:
    return cast("object", torch.jit.trace(call, x_of()))


def test_scripted_modules(swap_dir: Path) -> None:
    jit: Any = torch.jit
    scripted = jit.script(made())
    with pytest.raises(RuntimeError, match=r"does not support compiling torch\.jit\.script"):
        in_file(scripted, swap_dir, Backend())(x_of())


def test_export(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made()
        call = compile_model(model)
        call(x_of())
        exported: Any = [torch.export.export(each, (x_of(),)) for each in (call, model)]
        return [each.module()(x_of(1)).detach() for each in exported]

    check_same(script, swap_dir)
