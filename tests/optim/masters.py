"""What master weights mean, in plain torch: stock optimizers over copies in fp32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from tests.optim.small_session import SmallSession, gradients
from tests.optim.twins import Make, check_bits, params_of

HALF = (torch.bfloat16, torch.float16)


@dataclass
class MasterTwins:
    """Two trainings: ``session`` with master weights, and the loop that says what they are.

    ``plain`` steps over copies in fp32 of those ``plain_parameters`` that are in half
    precision, and over the others themselves.
    """

    session: SmallSession
    ours: Optimizer
    plain: Optimizer
    plain_parameters: dict[str, Parameter]

    @classmethod
    def of(cls, session: SmallSession, plain: Mapping[str, Parameter], make: Make) -> MasterTwins:
        ours = make(list(session.parameters.values()))
        masters = [
            Parameter(each.detach().float()) if each.dtype in HALF else each
            for each in plain.values()
        ]
        return cls(session, ours, make(masters), dict(plain))

    @property
    def masters(self) -> dict[str, Parameter]:
        return dict(zip(self.plain_parameters, params_of(self.plain), strict=True))

    def give(self, given: Sequence[Tensor | None]) -> None:
        self.session.give_gradients(given)
        for name, gradient in zip(self.plain_parameters, given, strict=True):
            master = self.masters[name]
            master.grad = None if gradient is None else gradient.to(master.dtype, copy=True)

    def step(self, iteration: int, without: Iterable[str] = ()) -> None:
        missing = set(without)
        given = gradients(self.plain_parameters.values(), iteration)
        self.give(
            [
                None if name in missing else gradient
                for name, gradient in zip(self.plain_parameters, given, strict=True)
            ]
        )
        self.ours.step()
        self.plain.step()
        self.round()
        self.check()

    @torch.no_grad()
    def round(self) -> None:
        for name, master in self.masters.items():
            self.plain_parameters[name].copy_(master)

    @torch.no_grad()
    def follow(self) -> None:
        """Let masters take what was changed in the parameters."""
        for name, master in self.masters.items():
            parameter = self.plain_parameters[name]
            changed = master.to(parameter.dtype) != parameter
            master.copy_(torch.where(changed, parameter.to(master.dtype), master))

    def check(self) -> None:
        for name, plain in self.plain_parameters.items():
            ours, master = self.session.parameters[name], self.masters[name]
            check_bits(ours, plain, name)
            mine = dict(self.ours.state.get(ours, {}))
            if master is not plain and mine:
                check_bits(mine.pop("master"), master, f"master of {name}")
            theirs = self.plain.state.get(master, {})
            assert list(mine) == list(theirs), name
            for kind, value in theirs.items():
                check_bits(mine[kind], value, f"{kind} of {name}")
