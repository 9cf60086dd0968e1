"""How the values of one parameter are kept, as tensors: its states, its master, their types.

Note [The master follows].  A parameter with a master is the master, rounded: every update
leaves it so.  Where an element is not when the next update begins, somebody else has changed
it (``load_state_dict``, an average, clamping, ``nn.init``, a write through ``.data``), and that
element of the master takes its value first.  A new master begins as zeros and takes them all.
Comparing values needs no version counter, so it sees every kind of write, in whatever order
model and optimizer are loaded; and what nobody has changed keeps all its bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zcompile.optim.rule import Group, Operands, Rule, Scaling
from zcompile.precision import MASTER, Kept, Precision, StateType

FOLLOWING = 3
"""Tensors in fp32 that ``follow`` holds beside its operands: masks and values, all together."""

_TYPES: dict[StateType, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "8bit": torch.uint8,
}


@dataclass(frozen=True, slots=True)
class Storage:
    """How a parameter of type ``dtype`` and its states are kept; ``kept`` is by kind, in order."""

    dtype: torch.dtype
    precision: Precision
    kept: Mapping[str, Kept]

    @classmethod
    def of(cls, precision: Precision, dtype: torch.dtype, names: Sequence[str]) -> Storage:
        """Return how the states called ``names`` are kept for parameters of type ``dtype``."""
        if not dtype.is_floating_point:
            precision = Precision()
        kept = precision.kept(names, dtype.itemsize)
        return cls(dtype, precision, {each.kind: each for each in kept})

    @property
    def plain(self) -> bool:
        """Whether it is as torch would have it."""
        return self.precision.plain_for(self.dtype.itemsize)

    @property
    def has_master(self) -> bool:
        return MASTER in self.kept

    @property
    def needs_native(self) -> bool:
        """Whether only native kernels can update it."""
        return not self.plain and self.precision.needs_native

    @property
    def refusal(self) -> str | None:
        """Why parameters of this type cannot be kept so; mostly ``None``."""
        if self.stochastic and self.dtype is torch.float16 and not self.has_master:
            return "fp16 is not rounded stochastically: train in bf16, or with master_weights"
        return None

    @property
    def stochastic(self) -> bool:
        """Whether what is stored in bf16 or in 8 bits is rounded stochastically."""
        return self.precision.stochastic and not self.plain

    @property
    def computed_in(self) -> torch.dtype:
        """The type that the update is computed in."""
        return self.dtype if self.plain else torch.float32

    @property
    def own_kinds(self) -> tuple[str, ...]:
        """The kinds that stand for states of the optimizer: all but the master."""
        return tuple(kind for kind in self.kept if kind != MASTER)

    def dtype_of(self, kind: str) -> torch.dtype:
        """Return the type of the tensor of ``kind``."""
        if kind == MASTER or self.kept[kind].per > 1:
            return torch.float32
        states = self.precision.states
        if self.plain or states is None:
            return torch.float32 if self.has_master else self.dtype
        return _TYPES[states]

    def layout_of(self, kind: str, param: Tensor) -> tuple[Sequence[int], Sequence[int]]:
        """Return the shape and the strides of the tensor of ``kind``."""
        per = self.kept[kind].per
        return (param.shape, param.stride()) if per == 1 else ((-(-param.numel() // per),), (1,))


def run_by_torch(rule: Rule, group: Group, scaling: Scaling, operands: Sequence[Operands]) -> None:
    """Update by torch's kernels: masters in fp32, and round them into their parameters."""
    if operands[0].out is None:
        rule.run(group, scaling, operands)
        return
    _follow(operands)
    rule.run(group, scaling, [replace(each, grad=each.grad.float()) for each in operands])
    for each in operands:
        assert each.out is not None
        each.out.copy_(each.param)


def _follow(operands: Sequence[Operands]) -> None:
    """Let masters take what somebody else has changed in their parameters: see the note."""
    for each in operands:
        assert each.out is not None
        rounded = each.param.to(each.out.dtype)
        changed = rounded.view(torch.int16) != each.out.view(torch.int16)
        each.param.copy_(torch.where(changed, each.out.float(), each.param))
