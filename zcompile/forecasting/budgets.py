"""The budgets of a forecast: those asked for, or else what the machine has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zcompile.errors import size_text
from zcompile.ir import Channel, Hardware, Tier
from zcompile.options import Options

DISK = Path("the machine's disk")
"""Stands for ``nvme_dir`` where a machine's own memory is the budget: nothing is opened."""


def options_for(given: Options | Mapping[str, object] | None, hardware: Hardware) -> Options:
    """Return the options that are planned for.

    With a ``device_budget`` they are those given.  Without one the memory of the machine is the
    budget: its device, and its host and its disk where there is a link to them.

    Raises ``ValueError`` for options that are wrong, or that ask for more than the machine has.
    """
    options = given if isinstance(given, Options) else Options.read(given)
    if options.device_budget is None:
        options = filled(options, hardware)
    asked = {Tier.DEVICE: options.device_budget, Tier.HOST: options.host_budget}
    for tier, budget in asked.items():
        capacity = hardware.capacities.get(tier, 0)
        if budget is not None and budget > capacity:
            raise ValueError(
                f"{tier}_budget={budget}: {hardware.name} has {size_text(capacity)} of {tier} "
                "memory; ask for no more, or name another machine"
            )
    return options


def budgets_of(options: Options, hardware: Hardware) -> dict[Tier, int | None]:
    """Return what each tier may hold; of the disk that is what the machine has."""
    disk = hardware.capacities.get(Tier.NVME, 0) if options.nvme_dir is not None else 0
    host = options.host_budget or 0
    return {Tier.DEVICE: options.device_budget, Tier.HOST: host, Tier.NVME: disk}


def filled(options: Options, hardware: Hardware) -> Options:
    """Return ``options`` with the memory of the machine where they say nothing."""
    capacities, links = hardware.capacities, hardware.links.keys()
    if options.device_budget is None and Tier.DEVICE in capacities:
        options = replace(options, device_budget=capacities[Tier.DEVICE])
    if options.host_budget is None and {Channel.H2D, Channel.D2H} <= links:
        options = replace(options, host_budget=capacities.get(Tier.HOST))
    has_disk = {Channel.NVME_READ, Channel.NVME_WRITE} <= links and Tier.NVME in capacities
    if options.nvme_dir is None and has_disk:
        options = replace(options, nvme_dir=DISK)
    return options
