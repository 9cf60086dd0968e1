"""The machine, as far as planning needs to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zcompile.ir.hardware import Hardware
from zcompile.ir.schedule import Tier

KernelSeconds = Mapping[str, Mapping[str, float]]
"""By schedule and kernel, by name: how long the kernel takes where nothing else runs."""


def _no_homes() -> Mapping[str, Tier]:
    return {}


def _no_seconds() -> KernelSeconds:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Budgets and what is already spoken for; ``None`` means no limit.

    ``reserved_bytes`` are device bytes that the schedule at hand does not show: device
    homes of parameters, gradients and states of other graphs, and our I/O buffers.
    ``host_reserved_bytes`` likewise for the host tier.  ``homes`` is the placement: the
    tier of every managed value by name, agreed for all graphs of a model.

    The host tier may be used if there is a ``host_budget``, the nvme tier if ``has_nvme``.

    Where the ``hardware`` and the ``kernel_seconds`` are known, plans can be timed.
    """

    device_budget: int | None = None
    host_budget: int | None = None
    reserved_bytes: int = 0
    host_reserved_bytes: int = 0
    homes: Mapping[str, Tier] = field(default_factory=_no_homes)
    has_nvme: bool = False
    hardware: Hardware | None = None
    kernel_seconds: KernelSeconds = field(default_factory=_no_seconds)
