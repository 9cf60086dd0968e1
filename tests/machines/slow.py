"""A machine whose kernels are slow, so that copies hide behind them."""

from __future__ import annotations

from dataclasses import replace

from zcompile.ir import Hardware
from zcompile.machines import load_machine


def slow(times: float) -> Hardware:
    """Return a machine whose kernels take so many ``times`` as long; its disk has no latency."""
    machine = load_machine("cpu-epyc")
    rates = {
        kind: {dtype: rate / times for dtype, rate in each.items()}
        for kind, each in machine.flops_per_s.items()
    }
    links = {channel: replace(link, latency_s=0.0) for channel, link in machine.links.items()}
    return replace(machine, name="slow", flops_per_s=rates, links=links)
