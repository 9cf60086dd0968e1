"""The same training twice: plain, and with a session; all bits compared after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from tests.optim.small_session import SmallSession, gradients

Make = Callable[[list[Parameter]], Optimizer]


def bits(tensor: Tensor) -> Tensor:
    return (
        tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
    )


def check_bits(ours: Tensor, plain: Tensor, what: str) -> None:
    assert ours.dtype is plain.dtype, what
    assert ours.shape == plain.shape, what
    assert torch.equal(bits(ours), bits(plain)), what


def params_of(optimizer: Optimizer) -> list[Parameter]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def order_of(optimizer: Optimizer) -> list[int]:
    """Return the numbers of the parameters that have states, in the order of their states."""
    numbers = {id(each): at for at, each in enumerate(params_of(optimizer))}
    return [numbers[id(each)] for each in optimizer.state]


def check_states(ours: Optimizer, plain: Optimizer) -> None:
    """Check that both optimizers hold the same states in the same order, with the same bits."""
    assert order_of(ours) == order_of(plain)
    for at, (mine, theirs) in enumerate(zip(params_of(ours), params_of(plain), strict=True)):
        assert list(ours.state.get(mine, {})) == list(plain.state.get(theirs, {}))
        for kind, value in plain.state.get(theirs, {}).items():
            if isinstance(value, Tensor):
                check_bits(ours.state[mine][kind], value, f"{kind} of parameter {at}")
            else:
                assert ours.state[mine][kind] == value


@dataclass
class Twins:
    """Two optimizers over equal parameters; ``session`` manages those of the first."""

    session: SmallSession
    ours: Optimizer
    plain: Optimizer
    plain_parameters: dict[str, Parameter]

    @classmethod
    def of(cls, session: SmallSession, plain: Mapping[str, Parameter], make: Make) -> Twins:
        ours = make(list(session.parameters.values()))
        return cls(session, ours, make(list(plain.values())), dict(plain))

    def give(self, given: Sequence[Tensor | None]) -> None:
        self.session.give_gradients(given)
        for parameter, gradient in zip(self.plain_parameters.values(), given, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()

    def step(self, iteration: int, without: Iterable[str] = ()) -> None:
        """Step both with the gradients of ``iteration``; those ``without`` have none."""
        given = gradients(self.plain_parameters.values(), iteration)
        missing = set(without)
        self.give(
            [
                None if name in missing else gradient
                for name, gradient in zip(self.plain_parameters, given, strict=True)
            ]
        )
        self.ours.step()
        self.plain.step()
        self.check()

    def check(self) -> None:
        for name, plain in self.plain_parameters.items():
            ours = self.session.parameters[name]
            check_bits(ours, plain, name)
            assert (ours.grad is None) == (plain.grad is None)
            if ours.grad is not None and plain.grad is not None:
                check_bits(ours.grad, plain.grad, f"gradient of {name}")
        check_states(self.ours, self.plain)
