"""Smallest: the least device budget that a schedule can run in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zcompile.ir import (
    KERNELS,
    MANAGED_ROLES,
    Kernel,
    Role,
    Schedule,
    Target,
    Tier,
    Value,
    footprint,
    held_at,
    kernel_name,
    operands,
    peak_bytes,
)
from zcompile.passes.lean import lean_plan
from zcompile.passes.pins import Pin, pin_of
from zcompile.passes.placement import Placement, managed_values, target_for


@dataclass(frozen=True, slots=True)
class Smallest:
    """The least device budget, and what needs it.

    ``step`` is the kernel at which most is held, by its number in the captured ``schedule``;
    ``kernel`` is its name.  ``values`` are what is held there, the largest first, those
    included that only rest there.  ``operands`` are the parameters, gradients and states that the
    kernel reads and writes, the largest first: they say where in the model it is.
    """

    bytes: int
    schedule: str
    step: int
    kernel: str
    values: tuple[Value, ...]
    operands: tuple[Value, ...] = ()


def smallest_bytes(schedule: Schedule, target: Target) -> Smallest:
    """Return the least device budget for ``schedule``, captured, with all it may at home away.

    ``target.homes`` are the pins; other managed values live on whatever tier there is off
    the device.  A budget of exactly this many bytes works, by the lean plan.
    """
    away = _away(target)
    homes = {each.name: away for each in managed_values([schedule])} | dict(target.homes)
    plan = lean_plan(schedule, replace(target, homes=homes))
    held = footprint(plan)
    kernels = {at: step for at, step in enumerate(plan.steps) if isinstance(step, KERNELS)}
    if not kernels:
        return Smallest(peak_bytes(plan, target), schedule.name, 0, "", ())
    fullest = max(kernels, key=lambda at: held.ordinary[at] + held.arena[at])
    return Smallest(
        bytes=peak_bytes(plan, target),
        schedule=schedule.name,
        step=list(kernels).index(fullest),
        kernel=kernel_name(kernels[fullest]),
        values=_largest_first(held_at(plan, fullest)),
        operands=_managed(plan, kernels[fullest]),
    )


def smallest_for_model(
    graphs: Sequence[Schedule], extra: Sequence[Value], pins: Sequence[Pin], target: Target
) -> Smallest:
    """Return the least device budget with which `place` succeeds, and the graph that needs it.

    ``graphs`` must not be empty.
    """
    values = managed_values(graphs, extra)
    away = _away(target)
    pinned = {each.name: pin_of(each, pins) for each in values}
    homes = {name: away if pin is None else pin[1] for name, pin in pinned.items()}
    # Copies in the arena take whole pages, so that all that is saved may take less as it lies.
    lying = {
        each.name: Tier.DEVICE
        for each in values
        if each.role is Role.SAVED and pinned[each.name] is None
    }
    tries = (homes, homes | lying) if lying else (homes,)
    return min(
        (_needed(graphs, values, each, target) for each in tries), key=lambda found: found.bytes
    )


def _needed(
    graphs: Sequence[Schedule], values: Sequence[Value], homes: Mapping[str, Tier], target: Target
) -> Smallest:
    """Return what the graph needs that needs most with those ``homes``."""
    placement = Placement(homes)
    found, graph = max(
        (
            (smallest_bytes(graph, target_for(graph, placement, values, target)), graph)
            for graph in graphs
        ),
        key=lambda pair: pair[0].bytes,
    )
    shown = {each.name for each in graph.values}
    unseen = (each for each in values if each.name not in shown)
    resting = (each for each in unseen if homes[each.name] is Tier.DEVICE)
    return replace(found, values=_largest_first((*found.values, *resting)))


def _managed(plan: Schedule, kernel: Kernel) -> tuple[Value, ...]:
    touched = set(operands(kernel))
    managed = (each for each in plan.values if each.role in MANAGED_ROLES)
    return _largest_first(each for each in managed if each.name in touched)


def _away(target: Target) -> Tier:
    if target.has_nvme:
        return Tier.NVME
    return Tier.DEVICE if target.host_budget is None else Tier.HOST


def _largest_first(values: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(sorted(values, key=lambda value: -value.nbytes))
