"""The schedule IR: plain data, standard library only."""

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
from zcompile.ir.text import parse, render, render_step
from zcompile.ir.verify import ScheduleError, device_profile, peak_bytes, verify

__all__ = [
    "MANAGED_ROLES",
    "PAGE_BYTES",
    "Compute",
    "Fetch",
    "Kernel",
    "Offload",
    "Release",
    "Role",
    "Schedule",
    "ScheduleError",
    "Step",
    "Target",
    "Tier",
    "Update",
    "Value",
    "Wait",
    "device_profile",
    "page_aligned",
    "parse",
    "peak_bytes",
    "render",
    "render_step",
    "verify",
]
