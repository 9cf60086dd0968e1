"""A machine as numbers: how fast it computes, and how fast bytes travel in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from zcompile.ir.channel import Channel
from zcompile.ir.schedule import Tier


class Kind(StrEnum):
    """What bounds a kernel, as far as a roofline tells kernels apart."""

    MATMUL = "matmul"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    STREAM = "stream"
    UPDATE = "update"


Shares = tuple[tuple[str, float], ...]
"""Resources by name, and the share of each that something takes while it runs at full speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A channel as numbers.

    A copy of ``n`` bytes takes ``latency_s + n / bandwidth_bytes_per_s`` where nothing else
    needs the resources that it ``uses``.  The latency counts from when it is asked for, and
    passes while copies ahead of it travel: a queue that is never empty moves bytes all the time.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    uses: Shares = ()

    def seconds(self, nbytes: int) -> float:
        """Return how long a copy takes at full speed, latency included."""
        return self.latency_s + self.travel_s(nbytes)

    def travel_s(self, nbytes: int) -> float:
        """Return how long a copy keeps the channel to itself, at full speed."""
        return nbytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What planning knows about a machine; every number in bytes, flops and seconds.

    ``capacities`` gives the bytes of a tier.  ``links`` has an entry for each channel that
    there is.  ``flops_per_s`` gives, for a kind of kernel and the name of a dtype, what
    kernels reach (not what the data sheet says), ``memory_bytes_per_s`` how fast they read
    and write the device's memory, and ``launch_s`` what starting one operation takes.

    Things that run at once may need the same resource: cores, one disk for both directions,
    a bus.  ``compute_uses``, ``update_uses`` and the ``uses`` of a link say how much of it
    each takes; where that adds up to more than 1 all slow down.  ``source`` says where the
    numbers come from.
    """

    name: str
    source: str
    capacities: Mapping[Tier, int]
    links: Mapping[Channel, Link]
    flops_per_s: Mapping[Kind, Mapping[str, float]]
    memory_bytes_per_s: float
    launch_s: float = 0.0
    compute_uses: Shares = ()
    update_uses: Shares = ()

    def __post_init__(self) -> None:
        for channel, link in self.links.items():
            _check_positive(f"{channel}.bandwidth_bytes_per_s", link.bandwidth_bytes_per_s)
            _check_not_negative(f"{channel}.latency_s", link.latency_s)
            _check_shares(f"{channel}.uses", link.uses)
        for kind, rates in self.flops_per_s.items():
            for dtype, rate in rates.items():
                _check_positive(f"flops_per_s[{kind}][{dtype}]", rate)
        _check_positive("memory_bytes_per_s", self.memory_bytes_per_s)
        _check_not_negative("launch_s", self.launch_s)
        _check_shares("compute_uses", self.compute_uses)
        _check_shares("update_uses", self.update_uses)


def _check_positive(what: str, number: float) -> None:
    if not 0 < number < float("inf"):
        raise ValueError(f"hardware: {what}={number} must be a number above 0")


def _check_not_negative(what: str, number: float) -> None:
    if not 0 <= number < float("inf"):
        raise ValueError(f"hardware: {what}={number} must be a number from 0 up")


def _check_shares(what: str, shares: Shares) -> None:
    for resource, share in shares:
        if not 0 < share <= 1:
            raise ValueError(f"hardware: {what}: {resource}={share} must be above 0 and at most 1")
