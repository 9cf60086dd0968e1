"""What the takeover needs of a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor

from zcompile.ir import Schedule, Target, Tier
from zcompile.precision import Precision
from zcompile.runtime.machine import Machine


class Host(Protocol):
    """The session of one compiled model, as the takeover sees it."""

    @property
    def machine(self) -> Machine:
        """Homes, transfers and arena of the model."""
        ...

    @property
    def precision(self) -> Precision:
        """How parameters and their states are to be kept."""
        ...

    @property
    def early_bytes(self) -> int:
        """What updates may take of the device while backward runs; 0 if none may begin then."""
        ...

    def name_of(self, parameter: Tensor) -> str | None:
        """Return what ``parameter`` is called; ``None`` if the session does not manage it now."""
        ...

    def elsewhere(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` rests in a home of another session."""
        ...

    def tier_of(self, value: str) -> Tier:
        """Return the tier that the placement gives to ``value``, such as ``"w:exp_avg"``.

        Asked also for states that only a foreign optimizer has.
        """
        ...

    def expect_states(self, states: Iterable[str]) -> None:
        """Take note of the states, such as ``"exp_avg"``, that an optimizer is about to make.

        Raises ``BudgetError`` if there is no room for all of them.
        """
        ...

    def overflow_tier(self) -> Tier:
        """Return where states go that no placement knows: nvme, or if there is none the device."""
        ...

    def target(self) -> Target:
        """Return the budgets for an update.

        ``reserved_bytes`` are our I/O buffers and every managed value whose home is the
        device, states that do not exist yet included: an update's schedule shows only what
        travels.
        """
        ...

    def plan(self, schedule: Schedule, target: Target) -> Schedule:
        """Return ``schedule`` as the session's passes plan it for ``target``."""
        ...
