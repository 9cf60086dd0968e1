"""The residency of an iteration as a linear program; see `zcompile.passes.residency`.

Time is cut at the sampled kernels.  Before sample ``k`` lies interval ``k``, in which the kernels
after the previous sample run and the thread may stall; then sample ``k`` runs, which copies beside
it can stretch where it shares a resource with them.  Columns, in scaled bytes and seconds:

- for each group, pause and tier what is away during the pause (``_Away``);
- at every sample what is away (``V``), in differences: a pause has two nonzeros, not one for
  each sample that it covers;
- for each channel what it moves in interval ``k`` and beside sample ``k``; and its level at the
  start and end of the sample: copies that have arrived ahead of need, or that wait to leave;
- how long the thread stalls in interval ``k``, and by how much sample ``k`` is stretched.

Levels at both ends of a sample are needed: at the smallest budget a copy fits only into a stall.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zcompile.ir import Channel, Hardware, Link, Target, Tier, channel_in
from zcompile.passes.clock import COMPUTE, UPDATE
from zcompile.passes.cycle import Cycle
from zcompile.passes.groups import Group
from zcompile.passes.linear import Program


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: an iteration, on a machine, within the budgets of a target.

    ``homes`` asks for plans that keep nothing of a value on the device from one graph to the
    next unless it lives there, and have no copy under way when a graph begins; homes take
    their room all the time, those of gradients twice while a graph makes them anew.
    ``traffic_weight`` makes equal times prefer fewer bytes moved, and with a
    ``bandwidth_share`` below 1 plans leave some of every channel unused: neither is for bounds.
    """

    cycle: Cycle
    hardware: Hardware
    target: Target
    homes: bool = False
    traffic_weight: float = 0.0
    bandwidth_share: float = 1.0

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers off the device that there are, the fastest first."""
        there = {Tier.HOST: self.target.host_budget is not None, Tier.NVME: self.target.has_nvme}
        return tuple(tier for tier, is_there in there.items() if is_there)

    @property
    def device_bytes(self) -> int:
        assert self.target.device_budget is not None
        return self.target.device_budget - self.target.reserved_bytes

    @property
    def host_bytes(self) -> int:
        return max(0, (self.target.host_budget or 0) - self.target.host_reserved_bytes)


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled kernel and the interval before it, in seconds; see the module."""

    kernel: int
    seconds: float
    activity: str
    before_s: Mapping[str, float]
    """By activity: how long the kernels of the interval take."""
    least_stall_s: float
    fixed_bytes: int
    """What the kernel holds if nothing at all is away."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A row by which a resource does no more than it can in ``free_s`` and while it waits.

    ``waits`` are the columns of the time that comes on top of the kernels.
    """

    row: int
    free_s: float
    waits: tuple[int, ...]


@dataclass(slots=True)
class Uses:
    """Which rows speak of what, for those who read the multipliers."""

    device: list[int] = field(default_factory=list[int])
    host: list[int] = field(default_factory=list[int])
    rates: dict[str, list[Rate]] = field(default_factory=dict[str, list[Rate]])
    """By resource: what it cannot exceed."""


@dataclass(slots=True)
class Flow:
    """The columns of one channel.

    ``total`` says what every byte that travels takes of the channel's time.
    """

    channel: Channel
    between: range
    beside: range
    at_start: range
    at_end: range
    total: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])


@dataclass(slots=True)
class Formulation:
    """The program for a `Question`, and what its columns mean.

    ``away`` gives by group, window and tier the column of what is away (of ``None`` for what
    is made again); columns are in ``unit_bytes`` and ``unit_s``.
    """

    question: Question
    samples: tuple[Sample, ...]
    groups: tuple[Group, ...]
    unit_bytes: float
    unit_s: float
    program: Program = field(default_factory=Program)
    away: dict[tuple[int, int, Tier | None], int] = field(
        default_factory=dict[tuple[int, int, Tier | None], int]
    )
    flows: dict[Channel, Flow] = field(default_factory=dict[Channel, Flow])
    stalls: range = range(0)
    stretches: range = range(0)
    rows: Uses = field(default_factory=Uses)


def link_of(question: Question, channel: Channel) -> Link:
    """Return the link of ``channel``; ``ValueError`` if the machine has none."""
    hardware = question.hardware
    if channel not in hardware.links:
        raise ValueError(f"{hardware.name}: has no link {channel}, which the budgets allow to use")
    return hardware.links[channel]


def samples_of(question: Question, samples: tuple[int, ...]) -> tuple[Sample, ...]:
    """Return the sampled kernels with all that lies before each of them."""
    kernels = question.cycle.kernels
    swaps = swap_stalls(question)
    found: list[Sample] = []
    before = samples[-1] - len(kernels)
    for at in samples:
        passed = {COMPUTE: 0.0, UPDATE: 0.0}
        stall_s = swaps[before % len(kernels)]
        for each in range(before + 1, at):
            passed[kernels[each].activity] += kernels[each].seconds
            stall_s += swaps[each % len(kernels)]
        kernel = kernels[at]
        found.append(
            Sample(at, kernel.seconds, kernel.activity, passed, stall_s, kernel.held_bytes)
        )
        before = at
    return tuple(found)


def swap_stalls(question: Question) -> list[float]:
    """Return for each kernel the stall after it that no plan avoids.

    What the next kernel needs and has no room beside this one arrives while neither runs.
    """
    kernels = question.cycle.kernels
    new_bytes = [kernel.operand_bytes for kernel in kernels]
    for value in question.cycle.values:
        for pause in value.pauses:
            if pause.needed and (pause.after + 1) % len(kernels) == pause.until:
                new_bytes[pause.until] -= value.nbytes
    rate = sum(link_of(question, channel_in(tier)).bandwidth_bytes_per_s for tier in question.tiers)
    if not rate or len(kernels) == 1:
        return [0.0] * len(kernels)
    room = question.device_bytes
    return [
        max(0, new_bytes[(at + 1) % len(kernels)] - max(0, room - kernel.held_bytes)) / rate
        for at, kernel in enumerate(kernels)
    ]
