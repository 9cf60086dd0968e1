"""Place: decide the home of every managed value, once for all graphs of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from zcompile.ir import MANAGED_ROLES, Role, Schedule, Target, Tier, Value
from zcompile.passes.base import PLACED
from zcompile.passes.lean import LeanBytes, LeanPeaks
from zcompile.passes.pins import Pin, pin_of
from zcompile.passes.placement import (
    DoesNotFit,
    Placement,
    Verdict,
    home_bytes,
    managed_values,
    resident_bytes,
    with_homes,
)

MAX_PREFETCH_BYTES = 64 << 20
"""Of the spare device bytes half, but no more than this, stays free for prefetching."""

MAX_ROUNDS = 8
"""How often the spare bytes are measured anew; most placements settle in two rounds."""

HOTTEST_FIRST = (Role.SAVED, Role.PARAMETER, Role.GRADIENT, Role.STATE)
"""By the bytes that each byte at home makes travel in an iteration.

A parameter is read by forward, backward and update, and written by the update; a gradient
is written once, and read by the update and by clipping; a state is read and written once.
What is saved for backward takes room only from one graph to the other, which is why it stays
before all others.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Give each managed value the home that ``target.homes`` says.

    Needs:  nothing.
    Keeps:  the steps; values that the target does not name.
    Ends:   managed values at home on the device are ``held``.
    """

    name: ClassVar[str] = "place"
    needs: ClassVar[frozenset[str]] = frozenset()
    gives: ClassVar[frozenset[str]] = frozenset({PLACED})

    def __call__(self, schedule: Schedule, target: Target) -> Schedule:
        return with_homes(schedule, target.homes)


@dataclass(frozen=True, slots=True)
class Preference:
    """Which values shall have the faster tiers, and how many device bytes stay free.

    ``order`` names the values, the most deserving first; ``None`` takes them kind by kind, the
    hottest first.  Of the spare device bytes half, but at most ``prefetch_bytes``, stay free
    for prefetching.  What forward saves for backward stays before all others, unless
    ``saved_leaves``: then it has the place in the order that it has.  ``reason`` says for people
    where the order comes from.  Of what does not live on the device, the first of ``host_order`` go
    to the host; without one, the first of ``order``.
    """

    order: tuple[str, ...] | None = None
    prefetch_bytes: int = MAX_PREFETCH_BYTES
    reason: str = ""
    saved_leaves: bool = False
    host_order: tuple[str, ...] | None = None

    def sorted(self, values: Iterable[Value]) -> list[Value]:
        """Return ``values``, the most deserving first."""
        found = sorted(values, key=lambda each: HOTTEST_FIRST.index(each.role))
        if self.order is None:
            return found
        return _in_order(found, self.order)

    def sorted_for_host(self, values: Iterable[Value]) -> list[Value]:
        """Return ``values``, those that deserve the host most first."""
        found = self.sorted(values)
        return found if self.host_order is None else _in_order(found, self.host_order)


def _in_order(values: Iterable[Value], order: Iterable[str]) -> list[Value]:
    ranks = {name: rank for rank, name in enumerate(order)}
    return sorted(values, key=lambda each: ranks.get(each.name, len(ranks)))


def place(
    graphs: Sequence[Schedule],
    extra: Sequence[Value],
    pins: Sequence[Pin],
    target: Target,
    preference: Preference | None = None,
) -> Placement:
    """Decide the home of every managed value of ``graphs``, captured, and of ``extra``.

    Without a device budget everything lives on the device, pins aside.  With one, values
    live there as far as the lean plan of every graph still fits and some room for prefetching
    is left; the rest goes to the host while it has room, and to nvme.  The hottest kind goes
    first, and within a kind what a graph names first.  What forward saves for backward leaves
    only if the lean plans break the budget with all of it there.

    Plans with a static arena are the faster ones, so what fits is measured by them; only
    where nothing fits in this way, by plans that vacate it.

    Another ``preference`` than this may be given.

    Raises ``DoesNotFit`` if a pin cannot be obeyed or no placement keeps the budgets.
    """
    preference = preference or Preference()
    model = _Model.of(graphs, managed_values(graphs, extra), target)
    pinned = {each.name: pin for each in model.values if (pin := pin_of(each, pins))}
    homes = {name: tier for name, (_, tier) in pinned.items()}
    _check_tiers(model, homes)
    free = preference.sorted(each for each in model.values if each.name not in pinned)
    homes |= _device_homes(
        model, homes, free, preference.prefetch_bytes, saved_leaves=preference.saved_leaves
    )
    homes |= _other_homes(model, homes, preference.sorted_for_host(free))
    verdicts = (
        Verdict(
            each.name,
            homes[each.name],
            _reason(homes[each.name], pinned.get(each.name), target)
            + _why(each, pinned, preference),
        )
        for each in model.values
    )
    return Placement({each.name: homes[each.name] for each in model.values}, tuple(verdicts))


@dataclass(frozen=True, slots=True)
class _Graph:
    """The lean plans of one graph; of the model's values, which it shows, and as what."""

    lean: LeanBytes
    shown: NDArray[np.int64]
    """Numbers of the model's values that the graph shows."""
    own: NDArray[np.int64]
    """Their numbers in the graph."""
    reserved: NDArray[np.int64]
    """By value of the model, the bytes that its home on the device takes without being shown."""


@dataclass(frozen=True, slots=True)
class _Model:
    graphs: tuple[_Graph, ...]
    values: tuple[Value, ...]
    target: Target

    @classmethod
    def of(cls, graphs: Iterable[Schedule], values: tuple[Value, ...], target: Target) -> _Model:
        return cls(tuple(_graph(each, values) for each in graphs), values, target)

    @property
    def away(self) -> Tier | None:
        """The slowest tier off the device, which takes what fits nowhere else."""
        if self.target.has_nvme:
            return Tier.NVME
        return None if self.target.host_budget is None else Tier.HOST

    @property
    def host_bytes(self) -> int:
        return (self.target.host_budget or 0) - self.target.host_reserved_bytes

    def peak(self, device: Iterable[str], *, vacating: bool) -> int:
        """Return what the lean plans need with homes on the ``device`` and the rest away.

        Which tier the rest is on makes no difference to the device.
        """
        on_device = set(device)
        stays = np.fromiter((each.name in on_device for each in self.values), bool)
        most = [
            int(graph.reserved[stays].sum()) + (peaks.vacated if vacating else peaks.static)
            for graph in self.graphs
            for peaks in (_peaks(graph, stays),)
        ]
        if not most:
            homes = dict.fromkeys(on_device, Tier.DEVICE)
            held = (each for each in self.values if each.name in on_device)
            most = [resident_bytes(Placement(homes), held)]
        return self.target.reserved_bytes + max(most)


def _graph(schedule: Schedule, values: Sequence[Value]) -> _Graph:
    lean = LeanBytes(schedule)
    numbers = [lean.number(each.name) for each in values]
    shown = [at for at, number in enumerate(numbers) if number is not None]
    own = [number for number in numbers if number is not None]
    reserved = [
        # As `reserved_for` counts: a gradient that the graph makes is there twice.
        each.nbytes
        if each.role in MANAGED_ROLES and (number is None or not lean.is_given(number))
        else 0
        for each, number in zip(values, numbers, strict=True)
    ]
    return _Graph(
        lean, np.array(shown, np.int64), np.array(own, np.int64), np.array(reserved, np.int64)
    )


def _peaks(graph: _Graph, stays: NDArray[np.bool_]) -> LeanPeaks:
    is_away = np.zeros(graph.lean.num_values, bool)
    is_away[graph.own] = ~stays[graph.shown]
    return graph.lean.away(is_away)


def _check_tiers(model: _Model, pinned: Mapping[str, Tier]) -> None:
    """Raise ``DoesNotFit`` if values are pinned off the device where there is no such room."""
    placed = [each for each in model.values if each.name in pinned]
    on_host = _host_bytes(each for each in placed if pinned[each.name] is Tier.HOST)
    on_nvme = sum(each.nbytes for each in placed if pinned[each.name] is Tier.NVME)
    if on_nvme and not model.target.has_nvme:
        raise DoesNotFit("nvme_dir", on_nvme, "values are pinned to nvme and there is none")
    if on_host > max(0, model.host_bytes):
        why = f"{on_host} B are pinned to the host"
        raise DoesNotFit("host_budget", on_host - max(0, model.host_bytes), why)


def _device_homes(
    model: _Model,
    pinned: Mapping[str, Tier],
    free: Sequence[Value],
    prefetch_bytes: int,
    *,
    saved_leaves: bool,
) -> dict[str, Tier]:
    """Return the values among ``free`` that live on the device."""
    budget = model.target.device_budget
    on_device = [name for name, tier in pinned.items() if tier is Tier.DEVICE]
    everything = [*on_device, *(each.name for each in free)]
    if budget is None:
        return {each.name: Tier.DEVICE for each in free}
    for vacating in (False, True):
        if (all_bytes := model.peak(everything, vacating=vacating)) <= budget:
            return {each.name: Tier.DEVICE for each in free}
        staying, lean_bytes = _staying(
            model, on_device, free, budget, vacating=vacating, leaves=saved_leaves
        )
        if lean_bytes <= budget:
            break
    if model.away is None:
        why = "all must live on the device: there is neither host_budget nor nvme_dir"
        raise DoesNotFit("device_budget", all_bytes - budget, why)
    if lean_bytes > budget:
        why = f"{lean_bytes} B are needed with all but pinned values off the device"
        raise DoesNotFit("device_budget", lean_bytes - budget, why)
    room = min((budget - lean_bytes) // 2, prefetch_bytes)
    chosen = dict.fromkeys(staying)
    chosen |= _fill(model, (*on_device, *staying), free, budget - room, vacating=vacating)
    # What is neither on the device nor on the host is nowhere: prefetching gives way, and
    # so does the static arena.
    for last_resort in (vacating, True):
        if _excess(model, pinned, chosen, free) > 0:
            taken = [*on_device, *chosen]
            chosen |= _fill(model, taken, free, budget, vacating=last_resort)
    if (missing := _excess(model, pinned, chosen, free)) > 0:
        raise DoesNotFit("host_budget", missing, "the host is full and there is no nvme_dir")
    return dict.fromkeys(chosen, Tier.DEVICE)


def _staying(
    model: _Model,
    on_device: Sequence[str],
    free: Sequence[Value],
    budget: int,
    *,
    vacating: bool,
    leaves: bool,
) -> tuple[list[str], int]:
    """Return what stays with the lean plans, and their bytes: all that is saved, or nothing.

    Copies take whole pages of the arena, so sending it all away may take more than it saves.
    What ``leaves`` may stay for its own merits only, as far as the lean plans allow.
    """
    saved = [each.name for each in free if each.role is Role.SAVED]
    if leaves and (leaving := model.peak(on_device, vacating=vacating)) <= budget:
        return [], leaving
    staying = model.peak((*on_device, *saved), vacating=vacating)
    if not saved or staying <= budget:
        return saved, staying
    leaving = model.peak(on_device, vacating=vacating)
    return (saved, staying) if staying <= leaving else ([], leaving)


def _excess(
    model: _Model, pinned: Mapping[str, Tier], chosen: Collection[str], free: Sequence[Value]
) -> int:
    """Return by how much the values that are not ``chosen`` are too many for the host."""
    if model.target.has_nvme:
        return 0
    on_host = [each for each in model.values if pinned.get(each.name) is Tier.HOST]
    rest = [each for each in free if each.name not in chosen]
    return _host_bytes((*on_host, *rest)) - model.host_bytes


def _host_bytes(values: Iterable[Value]) -> int:
    return sum(home_bytes(each, Tier.HOST) for each in values)


def _fill(
    model: _Model,
    on_device: Sequence[str],
    free: Sequence[Value],
    budget: int,
    *,
    vacating: bool,
) -> dict[str, None]:
    """Return those of ``free`` that fit, in order, beside the values ``on_device``.

    Counting all bytes of a value is never too little: at home on the device it is there all
    the time, and no longer in the arena.  What that leaves in the arena is found by measuring
    again.
    """
    chosen: dict[str, None] = {}
    for _ in range(MAX_ROUNDS):
        taken = {*on_device, *chosen}
        spare = budget - model.peak(taken, vacating=vacating)
        before = len(chosen)
        for value in free:
            cost = _device_cost(value)
            if value.name not in taken and cost <= spare:
                chosen[value.name] = None
                spare -= cost
        if len(chosen) == before:
            break
    return chosen


def _device_cost(value: Value) -> int:
    # A second backward makes the new gradient while the first is held: see reserved_for.
    return 2 * value.nbytes if value.role is Role.GRADIENT else value.nbytes


def _other_homes(
    model: _Model, homes: Mapping[str, Tier], free: Sequence[Value]
) -> dict[str, Tier]:
    """Return the homes of those ``free`` values that do not live on the device."""
    pinned = _host_bytes(each for each in model.values if homes.get(each.name) is Tier.HOST)
    room = model.host_bytes - pinned
    found: dict[str, Tier] = {}
    for value in free:
        if value.name in homes:
            continue
        nbytes = home_bytes(value, Tier.HOST)
        on_host = nbytes <= room or not model.target.has_nvme
        found[value.name] = Tier.HOST if on_host else Tier.NVME
        room -= nbytes if on_host else 0
    return found


def _reason(tier: Tier, pin: Pin | None, target: Target) -> str:
    if pin is not None:
        return f"pinned by {pin[0]!r}"
    match tier:
        case Tier.DEVICE if target.device_budget is None:
            return "there is no device_budget"
        case Tier.DEVICE:
            return "every lean plan still fits device_budget beside it"
        case Tier.HOST:
            return "host_budget has room, device_budget has not"
        case Tier.NVME:
            return "no faster tier has room"


def _why(value: Value, pinned: Collection[str], preference: Preference) -> str:
    return f"; {preference.reason}" if preference.reason and value.name not in pinned else ""
