"""What a kernel costs, apart from any machine; and on one machine, by the roofline.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zcompile.ir.hardware import Hardware, Kind


@dataclass(frozen=True, slots=True)
class Operation:
    """``count`` equal operations of a kernel, or several that only stream through memory.

    ``flops`` and ``nbytes``, what they read and write, are those of all together.  The
    ``kind`` is ``None`` if nothing is known of what they do.
    """

    name: str
    kind: Kind | None
    dtype: str
    flops: int
    nbytes: int
    count: int = 1


Cost = tuple[Operation, ...]
"""The operations of one kernel."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """An operation whose time is not known, of which kernel, and why."""

    kernel: str
    operation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Priced:
    """The seconds of each kernel as far as they are known, and what is missing to the rest."""

    seconds: Mapping[str, float]
    unknown: tuple[Unknown, ...]


def price(costs: Mapping[str, Cost], hardware: Hardware) -> Priced:
    """Return how long each kernel takes on ``hardware`` with nothing beside it.

    An operation takes as long as its flops or its bytes, whichever needs more, and the time
    of starting it.  A kernel with an operation of unknown time has none.
    """
    seconds: dict[str, float] = {}
    unknown: list[Unknown] = []
    for kernel, cost in costs.items():
        doubts = [
            Unknown(kernel, each.name, reason)
            for each in cost
            if (reason := _reason(each, hardware)) is not None
        ]
        unknown += doubts
        if not doubts:
            seconds[kernel] = _sum(cost, hardware)
    return Priced(seconds, tuple(unknown))


def _sum(cost: Iterable[Operation], hardware: Hardware) -> float:
    return sum(
        each.count * hardware.launch_s
        + max(each.nbytes / hardware.memory_bytes_per_s, _computing_s(each, hardware))
        for each in cost
    )


def _computing_s(operation: Operation, hardware: Hardware) -> float:
    if not operation.flops:
        return 0.0
    assert operation.kind is not None
    return operation.flops / hardware.flops_per_s[operation.kind][operation.dtype]


def _reason(operation: Operation, hardware: Hardware) -> str | None:
    if operation.kind is None:
        return "nothing is known of what it does"
    rates = hardware.flops_per_s.get(operation.kind, {})
    if operation.flops and operation.dtype not in rates:
        return f"{hardware.name} has no flops_per_s[{operation.kind}][{operation.dtype}]"
    return None
