"""The lean plan: every value on the device for exactly the kernels that need it."""

from __future__ import annotations

from zcompile.ir import Schedule, Target, peak_bytes
from zcompile.passes.offload import Offload
from zcompile.passes.pack import Pack
from zcompile.passes.placement import with_homes
from zcompile.passes.stream import Stream

_MOVES = (Stream(), Offload(), Pack())


def lean_plan(schedule: Schedule, target: Target) -> Schedule:
    """Return the plan of ``schedule`` that holds the fewest bytes, given ``target.homes``.

    It is what the pipeline gives without its optional passes.
    """
    schedule = with_homes(schedule, target.homes)
    for each in _MOVES:
        schedule = each(schedule, target)
    return schedule


def lean_peak(schedule: Schedule, target: Target) -> int:
    """Return the device bytes that the lean plan of ``schedule`` needs."""
    return peak_bytes(lean_plan(schedule, target), target)
