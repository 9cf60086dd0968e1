"""The schedule IR: plain data, standard library only."""

from zcompile.ir.channel import Channel, channel_in, channel_out
from zcompile.ir.cost import Cost, Operation, Priced, Unknown, price
from zcompile.ir.hardware import Hardware, Kind, Link
from zcompile.ir.memory import (
    Footprint,
    arena_peak_bytes,
    device_profile,
    footprint,
    held_after_moves,
    held_at,
    host_profile,
    peak_bytes,
)
from zcompile.ir.rules import ALL_RULES, Rule, ScheduleError
from zcompile.ir.schedule import (
    MANAGED_ROLES,
    PAGE_BYTES,
    Compute,
    Fetch,
    Kernel,
    Offload,
    Release,
    Role,
    Schedule,
    Step,
    Tier,
    Update,
    Value,
    Wait,
    page_aligned,
)
from zcompile.ir.target import Target
from zcompile.ir.text import is_name, parse, render, render_step, value_name
from zcompile.ir.uses import given, kernel_name, last_touch, operands
from zcompile.ir.verify import strip, verify

__all__ = [
    "ALL_RULES",
    "MANAGED_ROLES",
    "PAGE_BYTES",
    "Channel",
    "Compute",
    "Cost",
    "Fetch",
    "Footprint",
    "Hardware",
    "Kernel",
    "Kind",
    "Link",
    "Offload",
    "Operation",
    "Priced",
    "Release",
    "Role",
    "Rule",
    "Schedule",
    "ScheduleError",
    "Step",
    "Target",
    "Tier",
    "Unknown",
    "Update",
    "Value",
    "Wait",
    "arena_peak_bytes",
    "channel_in",
    "channel_out",
    "device_profile",
    "footprint",
    "given",
    "held_after_moves",
    "held_at",
    "host_profile",
    "is_name",
    "kernel_name",
    "last_touch",
    "operands",
    "page_aligned",
    "parse",
    "peak_bytes",
    "price",
    "render",
    "render_step",
    "strip",
    "value_name",
    "verify",
]
