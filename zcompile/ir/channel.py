"""The ways by which bytes travel between tiers."""

from __future__ import annotations

from enum import StrEnum

from zcompile.ir.schedule import Fetch, Offload, Tier


class Channel(StrEnum):
    """One direction in which bytes travel between two tiers, each with its own queue."""

    NVME_READ = "nvme_read"
    NVME_WRITE = "nvme_write"
    H2D = "h2d"
    D2H = "d2h"


def channel_in(home: Tier) -> Channel:
    """Return the channel by which a value whose home is ``home`` comes to the device."""
    assert home is not Tier.DEVICE, "what lives on the device is not fetched"
    return Channel.H2D if home is Tier.HOST else Channel.NVME_READ


def channel_out(home: Tier) -> Channel:
    """Return the channel by which a value leaves the device for ``home``."""
    assert home is not Tier.DEVICE, "what lives on the device is not offloaded"
    return Channel.D2H if home is Tier.HOST else Channel.NVME_WRITE


def channel_of(step: Fetch | Offload) -> Channel:
    """Return the channel by which the copy that ``step`` starts travels."""
    return channel_in(step.src) if isinstance(step, Fetch) else channel_out(step.dst)
