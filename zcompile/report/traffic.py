"""The copies that a schedule asks for, counted by channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zcompile.ir import Fetch, Offload, Schedule, Tier
from zcompile.runtime.ledger import Channel

_TOWARDS_DEVICE = {Tier.NVME: Channel.NVME_READ, Tier.HOST: Channel.H2D}
_OUT_OF_DEVICE = {Tier.NVME: Channel.NVME_WRITE, Tier.HOST: Channel.D2H}


@dataclass(frozen=True, slots=True)
class Traffic:
    """How many copies go over one channel each time the schedule runs, and their bytes."""

    num_copies: int = 0
    moved_bytes: int = 0

    def plus(self, nbytes: int) -> Traffic:
        return Traffic(self.num_copies + 1, self.moved_bytes + nbytes)


def planned_traffic(schedule: Schedule) -> Mapping[Channel, Traffic]:
    """Return what ``schedule`` moves over each channel that it uses.

    >>> from zcompile.ir import parse
    >>> planned_traffic(parse('''
    ... schedule s
    ... value %w : 100 B parameter @ nvme
    ... fetch %w <- nvme as t0
    ... '''))
    {<Channel.NVME_READ: 'nvme_read'>: Traffic(num_copies=1, moved_bytes=100)}
    """
    sizes = {value.name: value.nbytes for value in schedule.values}
    found: dict[Channel, Traffic] = {}
    for step in schedule.steps:
        if isinstance(step, Fetch):
            channel = _TOWARDS_DEVICE[step.src]
        elif isinstance(step, Offload):
            channel = _OUT_OF_DEVICE[step.dst]
        else:
            continue
        found[channel] = found.get(channel, Traffic()).plus(sizes[step.value])
    return found
