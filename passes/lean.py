"""The lean plan: every value on the device for exactly the kernels that need it."""

from __future__ import annotations

from zcompile.ir import Schedule, Target, footprint, peak_bytes
from zcompile.passes.offload import Offload
from zcompile.passes.pack import Pack
from zcompile.passes.placement import with_homes
from zcompile.passes.stream import Stream
from zcompile.passes.vacate import Vacate


def lean_plan(schedule: Schedule, target: Target) -> Schedule:
    """Return the plan of ``schedule`` that holds the fewest bytes, given ``target.homes``.

    It is what the pipeline gives without its optional passes, with the arena vacated.
    """
    return Pack()(Vacate()(_unpacked(schedule, target), target), target)


def lean_peak(schedule: Schedule, target: Target) -> int:
    """Return the device bytes that the lean plan of ``schedule`` needs.

    Offsets make no difference to them, so packing need not be tried.
    """
    return peak_bytes(_unpacked(schedule, target), target)


def static_lean_peak(schedule: Schedule, target: Target) -> int:
    """Return what `lean_peak` does, for the same steps with a static arena.

    No copy is held past its kernel, so packing leaves no holes and need not be tried.
    """
    held = footprint(_unpacked(schedule, target))
    arena_bytes = max(held.arena, default=0)
    return target.reserved_bytes + arena_bytes + max(held.ordinary, default=0)


def _unpacked(schedule: Schedule, target: Target) -> Schedule:
    streamed = Stream()(with_homes(schedule, target.homes), target)
    return Offload()(streamed, target)
