"""Bound: a time that no plan of an iteration can beat, and what stands in the way.

The iteration repeats: what a plan leaves on the device at its end may serve the next one, so
only what cannot stay all the time has to move.

Note [What has to move].  Let a value stay if it is on the device at all times.  All that stay
fit beside what every kernel needs for itself, so their bytes are at most the least room that a
kernel leaves.  A parameter or state that does not stay is read at least once in an iteration,
and written at least once if a kernel changes it.  A gradient that one graph makes and another
reads is written and read unless it stays in between, beside all that stay at all times.  So
each byte of room saves one byte read and at most one byte written, and the rest must move.
What is read beyond the bytes of the host comes from nvme.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from zcompile.ir import (
    KERNELS,
    MOVABLE_ROLES,
    Channel,
    Hardware,
    Kernel,
    KernelSeconds,
    Link,
    Role,
    Schedule,
    Target,
    Tier,
    Update,
    Value,
    channel_in,
    channel_out,
    footprint,
    strip,
)
from zcompile.passes.clock import COMPUTE, UPDATE
from zcompile.passes.placement import managed_values
from zcompile.passes.simulate import seconds_of

_PASSED = frozenset({Role.GRADIENT, Role.SAVED})
"""Roles whose values one graph makes for another, in every iteration."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one thing does to a resource: the seconds for which it needs all of it."""

    what: str
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Term:
    """One lower bound: the resource that is busy for at least ``seconds``, and with what."""

    resource: str
    seconds: float
    loads: tuple[Load, ...]

    def __str__(self) -> str:
        """Return such as ``disk: 1.550 s (read 3.100 GB, written 2.000 GB)``."""
        return f"{self.resource}: {self.seconds:.3f} s ({', '.join(map(_say, self.loads))})"


@dataclass(frozen=True, slots=True)
class Moving:
    """The least bytes that any plan moves in an iteration; see Note [What has to move]."""

    in_bytes: int
    out_bytes: int
    nvme_in_bytes: int
    nvme_out_bytes: int


@dataclass(frozen=True, slots=True)
class Least:
    """The least time of an iteration: its ``terms``, the largest first."""

    terms: tuple[Term, ...]

    @property
    def seconds(self) -> float:
        """The bound: no plan takes less."""
        return self.terms[0].seconds

    @property
    def binding(self) -> Term:
        """The resource that decides, and what keeps it busy."""
        return self.terms[0]

    def gap(self, seconds: float) -> float:
        """Return by which share of the bound a plan that takes ``seconds`` is slower."""
        return seconds / self.seconds - 1 if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Bound(Least):
    """The least time of an iteration by what it has to move: ``moving``."""

    moving: Moving


def bound(
    cycle: Sequence[Schedule], kernel_seconds: KernelSeconds, hardware: Hardware, target: Target
) -> Bound:
    """Return what no plan of ``cycle`` can beat on ``hardware`` within the budgets of ``target``.

    ``cycle`` are the graphs of an iteration in order, the update among them, planned or not:
    only their kernels count.  The reserved bytes of ``target`` are those of I/O buffers alone.
    """
    captured = [strip(each) for each in cycle]
    moving = least_moves(captured, target)
    kernels = _kernel_loads(captured, kernel_seconds)
    directions = _directions(moving, target)
    loads = tuple(Load(kind, 0, seconds) for kind, seconds in kernels.items())
    terms = [
        Term("kernels", sum(map(_seconds, loads)), loads),
        *_channel_terms(directions, hardware),
        *_shared_terms(directions, kernels, hardware),
    ]
    return Bound(tuple(sorted(terms, key=lambda each: (-each.seconds, each.resource))), moving)


def least_moves(cycle: Sequence[Schedule], target: Target) -> Moving:
    """Return what must move in every iteration; see Note [What has to move]."""
    values = {each.name: each for each in managed_values(cycle)}
    gradients = _carried(cycle, values)
    read = {name for graph in cycle for kernel in _kernels(graph) for name in kernel.reads}
    written = set[str]().union(*map(_written, cycle))
    lasting = [v for v in values.values() if v.role not in _PASSED and v.name in read]
    changed = [v for v in lasting if v.name in written]
    total, between = _sum(lasting), _sum(gradients)
    room = total + between
    if target.device_budget is not None:
        least = min((_least_room(each, target) for each in cycle), default=0)
        stays = min(total, max(0, least))
        room = min(max(0, target.device_budget - target.reserved_bytes), stays + between)
    in_bytes = max(0, total + between - room)
    out_bytes = max(0, _sum(changed) + between - room)
    host = (target.host_budget or 0) if target.has_nvme else in_bytes + out_bytes
    return Moving(in_bytes, out_bytes, max(0, in_bytes - host), max(0, out_bytes - host))


def _carried(cycle: Sequence[Schedule], values: Mapping[str, Value]) -> list[Value]:
    """Return the gradients, and what was saved, that one graph makes and a later one reads."""
    made: set[str] = set()
    found: dict[str, Value] = {}
    for graph in cycle:
        reads = {name for kernel in _kernels(graph) for name in kernel.reads}
        found |= {name: values[name] for name in made & reads}
        made |= {name for name in _written(graph) if values[name].role in _PASSED}
    return list(found.values())


def _least_room(graph: Schedule, target: Target) -> int:
    """Return what the fullest kernel of ``graph`` leaves for managed values, at the most."""
    own = tuple(
        replace(each, nbytes=0) if each.role in MOVABLE_ROLES else each for each in graph.values
    )
    most = max(footprint(replace(graph, values=own)).ordinary, default=0)
    assert target.device_budget is not None
    return target.device_budget - target.reserved_bytes - most


def _written(graph: Schedule) -> set[str]:
    managed = {each.name for each in graph.values if each.role in MOVABLE_ROLES}
    return {name for kernel in _kernels(graph) for name in kernel.writes} & managed


def _kernels(graph: Schedule) -> Iterable[Kernel]:
    return (step for step in graph.steps if isinstance(step, KERNELS))


def _sum(values: Iterable[Value]) -> int:
    return sum(each.nbytes for each in values)


def _kernel_loads(cycle: Sequence[Schedule], kernel_seconds: KernelSeconds) -> dict[str, float]:
    """Return the seconds of all compute kernels, and of all updates; those that there are."""
    found: dict[str, float] = {}
    for graph in cycle:
        for kernel in _kernels(graph):
            kind = UPDATE if isinstance(kernel, Update) else COMPUTE
            seconds = seconds_of(graph, kernel, kernel_seconds)
            found[kind] = found.get(kind, 0.0) + seconds
    return found


def _directions(moving: Moving, target: Target) -> tuple[_Direction, _Direction]:
    tiers = [tier for tier, there in _away(target).items() if there]
    return (
        _Direction("read", moving.in_bytes, moving.nvme_in_bytes, tuple(map(channel_in, tiers))),
        _Direction(
            "written", moving.out_bytes, moving.nvme_out_bytes, tuple(map(channel_out, tiers))
        ),
    )


def _away(target: Target) -> dict[Tier, bool]:
    return {Tier.HOST: target.host_budget is not None, Tier.NVME: target.has_nvme}


@dataclass(frozen=True, slots=True)
class _Direction:
    """Bytes that go one way: by which channels, and how many by nvme at the least."""

    verb: str
    nbytes: int
    nvme_bytes: int
    channels: tuple[Channel, ...]

    def splits(self) -> tuple[dict[Channel, int], ...]:
        """Return the extreme ways to divide the bytes among the channels."""
        if len(self.channels) < 2:
            return (dict.fromkeys(self.channels, self.nbytes),)
        host, nvme = self.channels
        return tuple(
            {host: self.nbytes - by_nvme, nvme: by_nvme}
            for by_nvme in (self.nvme_bytes, self.nbytes)
        )


def _channel_terms(directions: Iterable[_Direction], hardware: Hardware) -> Iterator[Term]:
    """Yield for each way: all bytes by all its channels at once, and each channel's own least."""
    for way in directions:
        if not way.channels:
            continue
        rates = [_link(hardware, channel).bandwidth_bytes_per_s for channel in way.channels]
        together = " and ".join(way.channels)
        seconds = way.nbytes / sum(rates)
        yield Term(together, seconds, (Load(way.verb, way.nbytes, seconds),))
        for channel, rate in zip(way.channels, rates, strict=True):
            least = min(split[channel] for split in way.splits())
            yield Term(channel, least / rate, (Load(way.verb, least, least / rate),))


def _shared_terms(
    directions: Sequence[_Direction], kernels: Mapping[str, float], hardware: Hardware
) -> Iterator[Term]:
    """Yield for each shared resource what all its users need of it together, at the least."""
    own = {COMPUTE: hardware.compute_uses, UPDATE: hardware.update_uses}
    links = (link.uses for link in hardware.links.values())
    for resource in sorted({name for uses in (*own.values(), *links) for name, _ in uses}):
        loads = [
            Load(kind, 0, seconds * dict(own[kind]).get(resource, 0.0))
            for kind, seconds in kernels.items()
        ]
        for way in directions:
            loads.append(
                min((_load(way, s, hardware, resource) for s in way.splits()), key=_seconds)
            )
        busy = tuple(each for each in loads if each.seconds > 0)
        yield Term(resource, sum(map(_seconds, busy)), busy)


def _load(way: _Direction, split: Mapping[Channel, int], hardware: Hardware, resource: str) -> Load:
    seconds = 0.0
    nbytes = 0
    for channel, by_channel in split.items():
        link = _link(hardware, channel)
        share = dict(link.uses).get(resource, 0.0)
        seconds += share * by_channel / link.bandwidth_bytes_per_s
        nbytes += by_channel if share else 0
    return Load(way.verb, nbytes, seconds)


def _seconds(load: Load) -> float:
    return load.seconds


def _link(hardware: Hardware, channel: Channel) -> Link:
    if channel not in hardware.links:
        raise ValueError(f"{hardware.name}: has no link {channel}, which the budgets allow to use")
    return hardware.links[channel]


def _say(load: Load) -> str:
    return f"{load.what} {load.nbytes / 1e9:.3f} GB" if load.nbytes else load.what
