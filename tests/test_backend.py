"""How errors reach the user, and whose session a call belongs to."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zcompile import BudgetError
from zcompile.backend import Backend

WIDTH = 64


class Net(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.tanh(self.first(x)))
        return y


def compiled(net: nn.Module, backend: Backend, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(net, backend=backend, options={"compute": "eager", **options})


def refuse(**options: Any) -> weakref.ref[Net]:
    """Let a model be refused; return what tells whether it is still there."""
    net = Net()
    step = compiled(net, Backend(), **options)
    with pytest.raises(ValueError, match="device_budget"):
        step(torch.ones(2, WIDTH))
    return weakref.ref(net)


@pytest.mark.parametrize("budget", ["12 parsecs", "4KiB"])
def test_a_refused_model_goes_like_any_other(budget: str) -> None:
    net = refuse(device_budget=budget)
    gc.collect()
    assert net() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device_budget": "12 parsecs"}, ["device_budget", "12 parsecs"]),
        ({"device_bugdet": "1GiB"}, ["device_bugdet", "device_budget"]),
        ({"nvme_dir": "/proc/no/such"}, ["nvme_dir", "/proc/no/such"]),
        ({"pipeline": "stream,nonsense"}, ["pipeline", "nonsense"]),
        ({"skip": ["stream"]}, ["skip", "stream"]),
    ],
)
def test_bad_options_are_value_errors_of_ours(options: dict[str, object], words: list[str]) -> None:
    net = Net()
    before = copy.deepcopy(net.state_dict())
    step = compiled(net, Backend(), **options)
    for _ in range(2):
        with pytest.raises(ValueError, match=words[0]) as caught:
            step(torch.ones(2, WIDTH))
        assert type(caught.value) is ValueError
        assert all(word in str(caught.value) for word in words)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_folder_that_could_not_be_used_is_tried_again(tmp_path: Path) -> None:
    net, folder = Net(), tmp_path / "mounted later" / "swap"
    addresses = [each.data_ptr() for each in net.parameters()]
    step = compiled(net, Backend(), nvme_dir=str(folder), place={"parameters": "nvme"})
    for _ in range(2):
        with pytest.raises(ValueError, match="nvme_dir"):
            step(torch.ones(2, WIDTH))
    assert [each.data_ptr() for each in net.parameters()] == addresses
    folder.parent.mkdir()
    step(torch.ones(2, WIDTH)).sum().backward()
    assert len(list(folder.iterdir())) == 1


def test_arguments_that_are_no_options_are_named() -> None:
    torch.compiler.reset()
    step = torch.compile(Net(), backend=Backend(), mode="max-autotune")
    with pytest.raises(ValueError, match="mode"):
        step(torch.ones(2, WIDTH))


def test_a_budget_that_cannot_work_is_refused_before_anything_runs(tmp_path: Path) -> None:
    net = Net()
    addresses = [each.data_ptr() for each in net.parameters()]
    step = compiled(net, Backend(), device_budget="4KiB", nvme_dir=str(tmp_path))
    with pytest.raises(BudgetError):
        step(torch.ones(2, WIDTH))
    with pytest.raises(BudgetError) as caught:
        step(torch.ones(2, WIDTH))
    assert caught.value.smallest_bytes > 4096
    assert [each.data_ptr() for each in net.parameters()] == addresses
    assert list(tmp_path.iterdir()) == []
    again = compiled(
        net, Backend(), device_budget=caught.value.smallest_bytes, nvme_dir=str(tmp_path)
    )
    again(torch.ones(2, WIDTH)).sum().backward()


def test_without_options_nothing_moves() -> None:
    torch.compiler.reset()
    backend, net = Backend(), Net()
    torch.compile(net, backend=backend)(torch.ones(2, WIDTH)).sum().backward()
    (session,) = backend.sessions(net)
    assert not any(each.moves for each in session.planned())


def test_models_of_one_class_have_sessions_of_their_own(tmp_path: Path) -> None:
    backend, first, second = Backend(), Net(), Net()
    options = dict[str, Any](compute="eager", device_budget="96KiB", nvme_dir=str(tmp_path))
    torch.compiler.reset()
    for net in (first, second):
        torch.compile(net, backend=backend, options=options)(torch.ones(2, WIDTH)).sum().backward()
    (one,), (other,) = backend.sessions(first), backend.sessions(second)
    assert one is not other
    weights = first.first.weight, second.first.weight
    assert one.name_of(weights[0]) == other.name_of(weights[1]) == "first.weight"
    assert one.name_of(weights[1]) is None
    assert weights[0].grad is not None
    assert weights[1].grad is not None
    assert torch.equal(weights[0].grad, weights[1].grad)


def test_a_copy_of_a_compiled_model_is_compiled_by_the_same_backend(tmp_path: Path) -> None:
    backend, net = Backend(), Net()
    step = compiled(net, backend, device_budget="96KiB", nvme_dir=str(tmp_path))
    step(torch.ones(2, WIDTH)).sum().backward()
    twin = copy.deepcopy(step)
    assert torch.equal(twin(torch.ones(2, WIDTH)), step(torch.ones(2, WIDTH)))


def test_the_name_works_without_importing_the_package(tmp_path: Path) -> None:
    code = f"""
import torch, sys
net = torch.nn.Linear(256, 256)
assert "zcompile" not in sys.modules
options = dict(compute="eager", device_budget="640KiB", nvme_dir={str(tmp_path)!r})
step = torch.compile(net, backend="zinf", options=options)
step(torch.ones(2, 256)).sum().backward()
assert net.weight.grad.eq(2).all()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == [], "a clean exit leaves nothing behind"


def train(step: Any, parameters: list[nn.Parameter], inputs: list[tuple[Any, ...]]) -> list[Tensor]:
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for each in inputs:
        step(*each).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [each.detach().clone() for each in parameters]


def test_a_function_may_be_called_with_one_module_and_then_another(tmp_path: Path) -> None:
    def apply(net: nn.Module, x: Tensor) -> Any:
        return net(x)

    results: list[list[Tensor]] = []
    for budget in ("96KiB", None):
        torch.compiler.reset()
        one, other = Net(), Net()
        other.load_state_dict({k: v.flip(0) for k, v in other.state_dict().items()})
        options: dict[str, Any] = {"compute": "eager"}
        if budget is not None:
            options |= {"device_budget": budget, "nvme_dir": str(tmp_path)}
        step: Any = torch.compile(apply, backend=Backend(), options=options)
        inputs = [(net, torch.ones(2, WIDTH)) for net in (one, other) * 3]
        results.append(train(step, [*one.parameters(), *other.parameters()], inputs))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_model_may_change_its_type_between_steps(tmp_path: Path) -> None:
    results: list[list[Tensor]] = []
    for budget in ("192KiB", None):
        torch.compiler.reset()
        net = Net()
        options: dict[str, Any] = {"compute": "eager"}
        if budget is not None:
            options |= {"device_budget": budget, "nvme_dir": str(tmp_path)}
        step: Any = torch.compile(net, backend=Backend(), options=options)
        train(step, list(net.parameters()), [(torch.ones(2, WIDTH),)] * 2)
        net.double()
        inputs = [(torch.ones(2, WIDTH, dtype=torch.float64),)] * 2
        results.append(train(step, list(net.parameters()), inputs))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
