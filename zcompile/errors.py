"""Errors that a user can act on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

NUM_LARGEST = 5
"""How many of the values alive at the peak an error lists."""

BudgetOption = Literal["device_budget", "host_budget"]

_REMEDIES: dict[BudgetOption, str] = {
    "device_budget": (
        "or make the step smaller: a smaller batch, shorter sequences, fewer pins to the device"
    ),
    "host_budget": "or give nvme_dir, or pin fewer values to the host",
}


def size_text(nbytes: int) -> str:
    """Return ``nbytes`` in bytes and, from 1 KiB on, in the unit that people would use.

    >>> size_text(100), size_text(3 << 29)
    ('100 B', '1610612736 B (1.5 GiB)')
    """
    amount = float(nbytes)
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{nbytes} B" if unit == "B" else f"{nbytes} B ({amount:.1f} {unit})"


@dataclass(eq=False)
class BudgetError(ValueError):
    """A budget under which no plan exists, raised before the first kernel runs.

    ``smallest_bytes`` is the least value of ``option`` that works, ``step`` the step of the
    schedule that needs it, ``values`` the names and bytes of what is held at that step.
    ``only_tier`` says that there is no other tier, so that everything has to stay on the device.
    """

    option: BudgetOption
    budget_bytes: int
    smallest_bytes: int
    step: str
    values: tuple[tuple[str, int], ...]
    only_tier: bool = False

    def __str__(self) -> str:
        largest = sorted(self.values, key=lambda value: value[1], reverse=True)
        held = [f"  {name}: {size_text(nbytes)}" for name, nbytes in largest[:NUM_LARGEST]]
        if len(largest) > NUM_LARGEST:
            rest = largest[NUM_LARGEST:]
            held.append(f"  {len(rest)} more: {size_text(sum(nbytes for _, nbytes in rest))}")
        lines = [
            f"{self.option}={size_text(self.budget_bytes)} is too small: "
            f"{size_text(self.smallest_bytes)} is the smallest that works",
            f"needed at step: {self.step}",
            *(["held there:", *held] if held else []),
            f"set {self.option} to at least {self.smallest_bytes}, {_REMEDIES[self.option]}",
        ]
        if self.only_tier:
            lines.append("everything has to stay on the device: give nvme_dir or host_budget")
        return "\n".join(lines)

    def fields(self) -> tuple[Any, ...]:
        """Return what the error is made of, in the order of the constructor."""
        return tuple(getattr(self, each.name) for each in fields(self))

    def __reduce__(self) -> tuple[type[BudgetError], tuple[object, ...]]:
        # Exceptions are rebuilt from ``args``, which stay empty when keywords were used: without
        # this, a rank's error could not be sent to its parent process.
        return BudgetError, self.fields()
