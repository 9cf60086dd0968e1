"""The errors of a model that cannot be planned, each with its remedy."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zcompile.errors import BudgetError
from zcompile.ir import MANAGED_ROLES, Role, Tier, Value
from zcompile.options import Options
from zcompile.passes.pins import KINDS, names_near
from zcompile.passes.placement import DoesNotFit, home_bytes
from zcompile.passes.smallest import Smallest

NUM_OPERANDS = 2
"""How many of the values that a kernel works on are named."""


def no_match(pattern: str, parameters: Collection[str], options: Options) -> str:
    """Say of a pattern of ``place`` that it matches none of ``parameters``."""
    place = {pin: str(tier) for pin, tier in options.place}
    near = " or ".join(map(repr, names_near(pattern, parameters)))
    kinds = ", ".join(KINDS)
    remedy = f"write one of {kinds}, or the name of a parameter" if near else "leave it out"
    example = f", such as {near}" if near else ""
    return f"place={place!r}: {pattern!r} matches no parameter; {remedy}{example}"


def check_host(options: Options, values: Collection[Value]) -> None:
    """Refuse a host tier that is the only one off the device and holds no large value."""
    budget = options.host_budget
    if budget is None or options.nvme_dir is not None or not values:
        return
    largest = max(values, key=lambda each: each.nbytes)
    least_bytes = home_bytes(largest, Tier.HOST)
    if least_bytes > budget:
        raise BudgetError(
            option="host_budget",
            budget_bytes=budget,
            smallest_bytes=least_bytes,
            step="the home of the largest value",
            values=((largest.name, largest.nbytes),),
        )


def no_room_at_home(error: DoesNotFit, options: Options, values: Sequence[Value]) -> ValueError:
    """Return the error for ``values`` that have no room off the device."""
    if error.option == "nvme_dir":
        return ValueError(f"place={dict(options.place)!r}: {error}; give nvme_dir")
    budget = options.host_budget or 0
    return BudgetError(
        option="host_budget",
        budget_bytes=budget,
        smallest_bytes=budget + error.missing_bytes,
        step="the homes of what does not fit on the device",
        values=tuple((each.name, each.nbytes) for each in values),
    )


def no_room_on_device(options: Options, least: Smallest) -> BudgetError:
    """Return the error for a device budget below ``least`` and what is set aside."""
    assert options.device_budget is not None, "without a budget everything fits"
    return BudgetError(
        option="device_budget",
        budget_bytes=options.device_budget,
        smallest_bytes=options.set_aside.budget_beside(least.bytes),
        step=_step(least),
        values=tuple((_called(each), each.nbytes) for each in least.values),
        only_tier=options.nvme_dir is None and options.host_budget is None,
    )


def _step(least: Smallest) -> str:
    """Return the kernel, and where in the model it is: its name says nothing to a user."""
    where = ", ".join(each.name for each in least.operands[:NUM_OPERANDS])
    return f"{least.schedule}: {least.kernel}" + (f", with {where}" if where else "")


def _called(value: Value) -> str:
    """Return a name that says what the value is: of what has no home it is one of the graph's."""
    if value.role in MANAGED_ROLES:
        return value.name
    return f"{value.name} ({'saved activation' if value.role is Role.SAVED else value.role})"
