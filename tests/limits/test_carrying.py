"""Models that are pickled, shared, sent, sharded, or made of other tensors than plain ones."""

from __future__ import annotations

import io
import pickle
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor

from tests.e2e.sides import IN_FILE, Compile, check_same, copies, in_file
from tests.limits.small import adamw, iterations, made, x_of
from zcompile.backend import Backend

# States of a first step whose closure runs the model for the first time, and shared memory.
pytestmark = pytest.mark.filterwarnings("ignore:.*outside the budget")


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("model", "pickle"),
        ("compiled", "torch.save"),
        pytest.param("model", "torch.save", marks=pytest.mark.slow),
        pytest.param("compiled", "pickle", marks=pytest.mark.slow),
    ],
)
def test_a_whole_module_is_saved_and_trained_further(what: str, how: str, swap_dir: Path) -> None:
    def carried(thing: Any) -> Any:
        if how == "pickle":
            return pickle.loads(pickle.dumps(thing))
        file = io.BytesIO()
        torch.save(thing, file)
        file.seek(0)
        return torch.load(file, weights_only=False)

    def script(compile_model: Compile) -> list[Tensor]:
        model = made()
        call = compile_model(model)
        seen = iterations(call, model, adamw(model), 1)
        other = carried(model if what == "model" else call)
        inner = getattr(other, "_orig_mod", other)
        again = compile_model(other) if what == "model" else other
        return seen + iterations(again, inner, adamw(inner), 2)

    check_same(script, swap_dir)


def test_a_compiled_model_by_the_name_of_the_backend_is_pickled(swap_dir: Path) -> None:
    options: Any = {**IN_FILE, "nvme_dir": swap_dir}
    call: Any = torch.compile(made(), backend="zinf", options=options)
    want = call(x_of()).detach()
    assert torch.equal(pickle.loads(pickle.dumps(call))(x_of()).detach(), want)


@pytest.mark.parametrize("first", [True, False])
def test_memory_shared_with_other_processes(first: bool, swap_dir: Path) -> None:
    model = made()
    if first:
        model.share_memory()
    call = in_file(model, swap_dir, Backend())
    seen = iterations(call, model, adamw(model), 1)
    model.share_memory()
    seen += iterations(call, model, adamw(model), 1)
    plain = made()
    want = iterations(plain, plain, adamw(plain), 1) + iterations(plain, plain, adamw(plain), 1)
    assert all(torch.equal(a, b) for a, b in zip(seen, want, strict=True))
    assert all(each.is_shared() for each in model.parameters())


def _add_one(model: nn.Module) -> None:
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1)


@pytest.mark.slow
def test_a_spawned_process_gets_the_module(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made()
        compile_model(model)(x_of()).sum().backward()
        child: Any = multiprocessing.get_context("spawn").Process(target=_add_one, args=(model,))
        child.start()
        child.join()
        assert child.exitcode == 0
        return copies(model)

    check_same(script, swap_dir)


class Tagged(torch.Tensor):
    """A subclass with nothing of its own."""


def test_a_parameter_of_a_plain_subclass(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made()
        model.up.weight = nn.Parameter(model.up.weight.detach().as_subclass(Tagged))
        y = compile_model(model)(x_of())
        y.square().sum().backward()
        tensors: list[Any] = [y.detach(), *(each.grad for each in model.parameters())]
        return [each.as_subclass(torch.Tensor).clone() for each in tensors]

    check_same(script, swap_dir)


@contextmanager
def one_rank(folder: Path) -> Generator[Any]:
    distributed.init_process_group(
        "gloo", rank=0, world_size=1, init_method=f"file://{folder / 'meeting'}"
    )
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        distributed.destroy_process_group()


def test_dtensors(swap_dir: Path, tmp_path: Path) -> None:
    seen: list[list[Any]] = []
    with one_rank(tmp_path) as mesh:
        for compiled in (False, True):
            torch.compiler.reset()
            model: Any = distribute_module(made(), mesh)
            call = in_file(model, swap_dir, Backend()) if compiled else model
            optimizer = adamw(model)
            for seed in range(2):
                optimizer.zero_grad()
                call(distribute_tensor(x_of(seed), mesh, [Replicate()])).square().mean().backward()
                optimizer.step()
            seen.append([each.full_tensor().detach().clone() for each in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_fully_shard(swap_dir: Path, tmp_path: Path) -> None:
    with one_rank(tmp_path) as mesh:
        model = made()
        fully_shard(model, mesh=mesh)
        with pytest.raises(ValueError, match=r"device_budget=.*by fully_shard.*leave"):
            in_file(model, swap_dir, Backend())(x_of())
        torch.compiler.reset()
        options: Any = {"compute": "eager"}
        call: Any = torch.compile(model, backend=Backend(), options=options)
        assert torch.equal(call(x_of()), made()(x_of()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_a_dynamically_quantized_model(swap_dir: Path) -> None:
    quantization: Any = torch.ao.quantization
    model = quantization.quantize_dynamic(made(), {nn.Linear})
    want = model(x_of())
    assert torch.equal(in_file(model, swap_dir, Backend())(x_of()), want)


def test_a_model_on_the_meta_device(swap_dir: Path) -> None:
    with torch.device("meta"):
        model = made()
    with pytest.raises(ValueError, match=r"tensors on meta.*move the model to the CPU"):
        in_file(model, swap_dir, Backend())(torch.empty(3, 64, device="meta"))


def test_tensors_are_swapped(swap_dir: Path) -> None:
    model = made()
    call = in_file(model, swap_dir, Backend())
    want = call(x_of()).detach()
    future: Any = torch.__future__
    future.set_swap_module_params_on_conversion(True)
    try:
        with pytest.raises(RuntimeError, match="Couldn't swap"):
            model.double()
    finally:
        future.set_swap_module_params_on_conversion(False)
    assert torch.equal(call(x_of()).detach(), want)
    assert call(x_of()).dtype is torch.float32
    model.double()
    assert call(x_of().double()).dtype is torch.float64
