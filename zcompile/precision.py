"""How the values that an update touches are kept, and what that weighs: no tensor here.

torch keeps the states of a parameter in the type of the parameter.  A ``Precision`` says what
is kept otherwise.  Docs: ``docs/working_weights.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

StateType = Literal["fp32", "bf16", "8bit"]

MASTER = "master"
"""The kind of state that is a parameter in fp32."""

SCALE = "_scale"
"""What the name of a state in 8 bits ends in where its scales are meant."""

BLOCK = 256
"""Elements of a state in 8 bits that share a scale."""

HALF_BYTES, FLOAT_BYTES = 2, 4

_STATE_BYTES: dict[StateType, int] = {"fp32": 4, "bf16": 2, "8bit": 1}


@dataclass(frozen=True, slots=True)
class Kept:
    """One state of a parameter: an item of ``itemsize`` bytes for each ``per`` elements."""

    kind: str
    itemsize: int
    per: int = 1

    def nbytes(self, numel: int) -> int:
        """Return the bytes of the state of a parameter of ``numel`` elements."""
        return -(-numel // self.per) * self.itemsize


@dataclass(frozen=True, slots=True)
class Precision:
    """What differs from torch in how parameters and their states are kept.

    ``master``: parameters of two bytes have a copy in fp32, and their states are in fp32.
    ``states``: the type of all states, in place of the one they would have.  ``stochastic``:
    what is stored in bf16 or in 8 bits is rounded stochastically, with ``seed``.
    """

    master: bool = False
    states: StateType | None = None
    stochastic: bool = False
    seed: int = 0

    @property
    def plain(self) -> bool:
        """Whether nothing differs, for parameters of any type."""
        return not self.master and self.states is None and not self.stochastic

    @property
    def asked(self) -> tuple[str, ...]:
        """What differs, as options that a user writes."""
        given = {
            "master_weights=True": self.master,
            f"state_dtype={self.states!r}": self.states is not None,
            "rounding='stochastic'": self.stochastic,
        }
        return tuple(text for text, there in given.items() if there)

    @property
    def needs_native(self) -> bool:
        """Whether only the native kernels can make such an update."""
        masters_only = self.master and self.states in (None, "fp32") and not self.stochastic
        return not self.plain and not masters_only

    def plain_for(self, itemsize: int) -> bool:
        """Whether nothing differs for parameters with elements of ``itemsize`` bytes."""
        if itemsize == HALF_BYTES:
            return self.plain
        if itemsize != FLOAT_BYTES:
            return True
        return self.states in (None, "fp32")

    def has_master(self, itemsize: int) -> bool:
        """Whether parameters with elements of ``itemsize`` bytes have a master."""
        return self.master and itemsize == HALF_BYTES

    def kept(self, names: Sequence[str], itemsize: int) -> Iterator[Kept]:
        """Yield what is kept of the states called ``names``, and the master if there is one."""
        master = self.has_master(itemsize)
        usual = FLOAT_BYTES if master else itemsize
        states = None if self.plain_for(itemsize) else self.states
        for name in names:
            yield Kept(name, usual if states is None else _STATE_BYTES[states])
            if states == "8bit":
                yield Kept(name + SCALE, FLOAT_BYTES, BLOCK)
        if master:
            yield Kept(MASTER, FLOAT_BYTES)

    def forecast(
        self, names: Sequence[str], nbytes: int, itemsize: int | None
    ) -> Iterator[tuple[str, int]]:
        """Yield kind and bytes of what is kept of the states called ``names``.

        Their parameter has ``nbytes``, in elements of ``itemsize``; unknown, they are torch's.
        """
        if itemsize is None or self.plain_for(itemsize):
            yield from ((name, nbytes) for name in names)
            return
        for each in self.kept(names, itemsize):
            yield each.kind, each.nbytes(nbytes // itemsize)

    def state_named(self, kind: str) -> str | None:
        """Return the state of the optimizer that ``kind`` belongs to; ``None`` for the master."""
        if self.master and kind == MASTER:
            return None
        return kind.removesuffix(SCALE) if self.states == "8bit" else kind
