"""What an update that is made before it is asked for takes for granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.optim import Optimizer

from zcompile.optim.rule import Group
from zcompile.optim.subjects import GRAD, PARAM, Subject
from zcompile.runtime.homes import Homes
from zcompile.runtime.rest import Rest

Flags = tuple[tuple[str, str], ...]
"""The options of a parameter group, written out to the last bit."""


@dataclass(frozen=True, slots=True, eq=False)
class Assumption:
    """All that the update of one parameter depends on, as it was at one moment.

    ``rests`` are the parameter, its gradient and its states, by kind; ``count`` is that of its
    updates.
    """

    optimizer_type: type[Optimizer]
    flags: Flags
    count: float | None
    rests: Mapping[str, Rest]

    @classmethod
    def of(
        cls,
        homes: Homes,
        optimizer: Optimizer,
        group: Group,
        param: Tensor,
        gradient: Rest,
        kinds: Sequence[str],
    ) -> Self | None:
        """Return how things are; ``None`` if they are not all in files and plainly to be compared.

        ``kinds`` are the states of ``param``.
        """
        flags = _flags(group)
        state = optimizer.state.get(param, {})
        tensors = {PARAM: param, **{kind: state.get(kind) for kind in kinds}}
        rests: dict[str, Rest] = {GRAD: gradient}
        for kind, tensor in tensors.items():
            rest = Rest.of(homes, tensor) if isinstance(tensor, Tensor) else None
            if rest is None or not rest.mapping.apart:
                return None  # what has not been replaced before needs room for its mapping
            rests[kind] = rest
        if flags is None:
            return None
        return cls(type(optimizer), flags, _count(state.get("step")), rests)

    def holds(self, homes: Homes, optimizer: Optimizer, subject: Subject) -> bool:
        """Say whether ``subject``, about to be updated, is still so, for certain."""
        claim = subject.claim
        tensors = subject.tensors
        return (
            type(optimizer) is self.optimizer_type
            and subject.factor is None
            and _flags(claim.group) == self.flags
            and _count(claim.step) == self.count
            and tensors.keys() == self.rests.keys()
            and all(rest.holds(homes, tensors[kind]) for kind, rest in self.rests.items())
        )


def flushes_denormals() -> bool:
    """Say whether this thread takes the smallest numbers for zero; other threads may not."""
    return bool((torch.full((16,), 1e-38, device="cpu", dtype=torch.float32) * 0.01 == 0).any())


def _flags(group: Group) -> Flags | None:
    """Return the options of ``group``; ``None`` if one is no plain number, word or row of them."""
    plain = {name: value for name, value in group.items() if name != "params"}
    if not all(map(_is_plain, plain.values())):
        return None
    return tuple((name, repr(value)) for name, value in plain.items())


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))  # pyright: ignore[reportUnknownArgumentType]
    return value is None or type(value) in (bool, int, float, str)


def _count(step: object) -> float | None:
    return float(step) if isinstance(step, Tensor) else None
