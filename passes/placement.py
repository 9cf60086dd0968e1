"""A placement: the home of every managed value of a model, agreed for all its graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from zcompile.ir import (
    MANAGED_ROLES,
    MOVABLE_ROLES,
    Compute,
    Role,
    Schedule,
    Target,
    Tier,
    Value,
    given,
    page_aligned,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision and its reason, for people."""

    value: str
    tier: Tier
    reason: str


@dataclass(frozen=True, slots=True)
class Placement:
    """The tier of every managed value by name, and why."""

    homes: Mapping[str, Tier]
    verdicts: tuple[Verdict, ...] = ()


class DoesNotFit(ValueError):
    """No placement keeps the budgets and obeys the pins.

    ``option`` is the option that stands in the way and ``missing_bytes`` is by how much;
    for a tier that is not there at all, all that was to go there.
    """

    def __init__(
        self,
        option: Literal["device_budget", "host_budget", "nvme_dir"],
        missing_bytes: int,
        why: str,
    ) -> None:
        self.option = option
        self.missing_bytes = missing_bytes
        self.why = why
        super().__init__(option, missing_bytes, why)

    def __str__(self) -> str:
        return f"{self.option}: {self.why}; {self.missing_bytes} B are missing"


def local_values(graph: Schedule) -> frozenset[str]:
    """Return the saved values that ``graph`` makes and keeps to itself.

    Forward does not hand them on, and backward makes them again.
    """
    saved = {value.name for value in graph.values if value.role is Role.SAVED}
    saved.difference_update(graph.outputs)
    if not saved:
        return frozenset()
    kernels = (step for step in graph.steps if isinstance(step, Compute))
    return frozenset(name for step in kernels for name in step.writes if name in saved)


def managed_values(graphs: Sequence[Schedule], extra: Sequence[Value] = ()) -> tuple[Value, ...]:
    """Return the movable values of all ``graphs`` and ``extra``, each name once.

    Saved values that are made again instead of moved are not among them.

    What forward saves may have been seen with larger shapes than backward has so far: the
    larger size counts.  Raises ``ValueError`` if two graphs give one name to other values of
    different size or role.
    """
    found: dict[str, Value] = {}
    for value in (*_shared(graphs), *extra):
        if value.role not in MOVABLE_ROLES:
            continue
        first = found.setdefault(value.name, value)
        if first.role is value.role is Role.SAVED:
            found[value.name] = max(first, value, key=lambda each: each.nbytes)
        elif (first.nbytes, first.role) != (value.nbytes, value.role):
            raise ValueError(
                f"%{value.name} is {first.nbytes} B of {first.role} in one graph "
                f"and {value.nbytes} B of {value.role} in another"
            )
    return tuple(found.values())


def _shared(graphs: Sequence[Schedule]) -> Iterator[Value]:
    for graph in graphs:
        local = local_values(graph)
        yield from (value for value in graph.values if value.name not in local)


def lasting_values(graphs: Iterable[Schedule]) -> list[Value]:
    """Return the values whose size is the model's, not that of its inputs."""
    return [each for each in managed_values(tuple(graphs)) if each.role in MANAGED_ROLES]


def with_homes(schedule: Schedule, homes: Mapping[str, Tier]) -> Schedule:
    """Return ``schedule`` with its movable values at ``homes``; others stay as they are.

    A managed value whose home is the device is ``held``: it outlives the schedule.
    """

    def settle(value: Value) -> Value:
        if value.role not in MOVABLE_ROLES:
            return value
        home = homes.get(value.name, value.home)
        held = home is Tier.DEVICE if value.role in MANAGED_ROLES else value.held
        if home is value.home and held == value.held:
            return value
        return Value(value.name, value.nbytes, value.role, home, held)

    return replace(schedule, values=tuple(map(settle, schedule.values)))


def resident_bytes(placement: Placement, values: Iterable[Value], tier: Tier = Tier.DEVICE) -> int:
    """Return the bytes that the homes of those ``values`` on ``tier`` take at all times.

    What is saved for backward is there from one graph to another only.
    """
    return sum(
        home_bytes(value, tier)
        for value in values
        if placement.homes[value.name] is tier and value.role in MANAGED_ROLES
    )


def home_bytes(value: Value, tier: Tier) -> int:
    """Return what a home of ``value`` takes: on the device its bytes, elsewhere whole pages."""
    return value.nbytes if tier is Tier.DEVICE else page_aligned(value.nbytes)


def reserved_for(graph: Schedule, placement: Placement, values: Iterable[Value]) -> int:
    """Return the device bytes of homes that ``graph`` does not show, out of all ``values``.

    A gradient that ``graph`` makes counts too: the one of the previous backward may still
    be held when the new one is made, for accumulation.
    """
    there = given(graph)
    shown = {value.name for value in graph.values if value.name in there}
    return resident_bytes(placement, (each for each in values if each.name not in shown))


def target_for(
    graph: Schedule, placement: Placement, values: Sequence[Value], target: Target
) -> Target:
    """Return ``target`` as planning ``graph`` needs it: homes, and bytes that it cannot see.

    The reserved bytes of ``target`` itself (I/O buffers) count for every graph.
    """
    shown = {value.name for value in graph.values}
    unseen = [value for value in values if value.name not in shown]
    on_host = resident_bytes(placement, unseen, Tier.HOST)
    return replace(
        target,
        homes=placement.homes,
        reserved_bytes=target.reserved_bytes + reserved_for(graph, placement, values),
        host_reserved_bytes=target.host_reserved_bytes + on_host,
    )


def before_moving(
    target: Target, values: Iterable[Value], before: Placement | None, after: Placement
) -> Target:
    """Return ``target``, made for ``after``, while all still rests where ``before`` has put it.

    States that do not exist yet go to their new homes at once.
    """
    if before is None or before is after:
        return target
    staying, coming = 0, 0
    for value in values:
        was = before.homes.get(value.name) is Tier.DEVICE
        will_be = after.homes[value.name] is Tier.DEVICE
        staying += value.nbytes * (was and not will_be)
        coming += value.nbytes * (will_be and not was and value.role is not Role.STATE)
    more_bytes = max(0, staying - coming)
    return replace(target, reserved_bytes=target.reserved_bytes + more_bytes)


def parameter_of(value: Value) -> str:
    """Return the name of the parameter that ``value`` belongs to, itself maybe.

    >>> parameter_of(Value("layers.0.weight:exp_avg", 4, Role.STATE))
    'layers.0.weight'
    """
    return value.name if value.role is Role.PARAMETER else value.name.rpartition(":")[0]


def enlarged(known: Schedule, new: Schedule) -> Schedule:
    """Return ``known`` with every size raised to that in ``new``, the same graph."""
    values = tuple(
        replace(a, nbytes=max(a.nbytes, b.nbytes))
        for a, b in zip(known.values, new.values, strict=True)
    )
    steps = tuple(
        replace(a, transient_bytes=max(a.transient_bytes, b.transient_bytes))
        if isinstance(a, Compute) and isinstance(b, Compute)
        else a
        for a, b in zip(known.steps, new.steps, strict=True)
    )
    return replace(known, values=values, steps=steps)
