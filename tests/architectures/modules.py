"""PyTorch's own database of modules: every module of ``torch.nn`` with its sample inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import SGD
from torch.testing._internal import common_modules
from torch.utils import _pytree as pytree

from tests.e2e.jobs import Record, tensors_of

CALLS = 2
"""How often a module is called, with gradients; the weights are updated after each call."""

DATABASE: Sequence[Any] = cast("Any", common_modules).module_db

NAMES: list[str] = [each.name for each in DATABASE]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One way to make a module and to call it, in training or in evaluation."""

    module: str
    training: bool
    at: int
    desc: str
    given: Any

    @property
    def name(self) -> str:
        """What it is called among the samples of its module; fit for a module's name."""
        mode = "train" if self.training else "eval"
        return f"{self.at}-{mode}"

    def __str__(self) -> str:
        return f"{self.module} {self.name} {self.desc}".rstrip()

    def make(self) -> nn.Module:
        """Return the module; the same weights each time."""
        torch.manual_seed(1)
        args, kwargs = _of(self.given.constructor_input)
        module: nn.Module = _entry(self.module).module_cls(*args, **kwargs)
        module.to(torch.float32).train(self.training)
        if any(isinstance(each, UninitializedParameter) for each in module.parameters()):
            args, kwargs = self.arguments()
            module(*args, **kwargs)
        return module

    def arguments(self) -> Arguments:
        """Return copies of what the module is called with, without gradients."""
        return _of(self.given.forward_input)


def _entry(name: str) -> Any:
    (found,) = (each for each in DATABASE if each.name == name)
    return found


def _of(given: Any) -> Arguments:
    args, kwargs = pytree.tree_map(_fresh, (given.args, given.kwargs))
    return args, kwargs


def _fresh(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def samples_of(name: str) -> list[Sample]:
    """Return all samples of the module called ``name``, in float32 on the CPU.

    Those in evaluation come where the database says that they differ from training.
    """
    entry = _entry(name)
    found: list[Sample] = []
    for training in (True, False) if entry.train_and_eval_differ else (True,):
        torch.manual_seed(0)
        given = entry.module_inputs_func(
            entry, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
        found += [Sample(name, training, at, e.desc, e) for at, e in enumerate(given)]
    return found


class Together(nn.Module):
    """Several modules, each called with arguments of its own: one graph for all."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__()
        self.each = nn.ModuleDict({sample.name: sample.make() for sample in samples})

    def forward(self, calls: Mapping[str, Arguments]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, module in self.each.items():
            args, kwargs = calls[name]
            found[name] = module(*args, **kwargs)
        return found


def trained(
    samples: Sequence[Sample], compile_model: Callable[[nn.Module], Any]
) -> tuple[Together, list[Record]]:
    """Return the modules of ``samples`` and all tensors after each of two calls."""
    model = Together(samples)
    call = compile_model(model)
    parameters = list(model.parameters())
    optimizer = SGD(parameters or [torch.zeros(1)], lr=0.1, momentum=0.9)
    records: list[Record] = []
    for number in range(CALLS):
        calls = {sample.name: sample.arguments() for sample in samples}
        torch.manual_seed(number)
        outputs = call(calls)
        _go_back(outputs, number)
        seen = {name: each.detach().clone() for name, each in _named("output", outputs)}
        seen |= {
            f"gradient of {name}": each.grad.clone()
            for name, each in _named("input", calls)
            if each.grad is not None
        }
        optimizer.step()
        records.append({**seen, **tensors_of(model, optimizer)})
    return model, records


def _go_back(outputs: Any, seed: int) -> None:
    """Give every output a gradient of its own."""
    generator = torch.Generator().manual_seed(seed)
    differentiable = [each for _, each in _named("", outputs) if each.requires_grad]
    if differentiable:
        weights = [torch.randn(each.shape, generator=generator) for each in differentiable]
        torch.autograd.backward(differentiable, weights)


def _named(what: str, tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in ``tree`` with the way to each."""
    for way, leaf in pytree.tree_leaves_with_path(tree):
        if isinstance(leaf, Tensor):
            yield f"{what}{pytree.keystr(way)}", leaf
