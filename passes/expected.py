"""The update that an iteration is expected to end with, before any optimizer has run.

Planning looks at whole iterations, and the update moves most of the bytes: every gradient,
parameter and state of what is trained, parameter by parameter, in pieces where they are large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zcompile.ir import (
    KERNELS,
    MANAGED_ROLES,
    PAGE_BYTES,
    Compute,
    Hardware,
    Role,
    Schedule,
    Tier,
    Update,
    Value,
    kernel_name,
)
from zcompile.passes.placement import parameter_of

UPDATE_ROOM = Schedule("update", (), (Compute("window", (), (), 64 << 10),))
"""What the smallest update needs, as a graph that every placement has to leave room for."""

LARGER_UPDATE_ROOM = Schedule("update", (), (Compute("window", (), (), 128 << 10),))
"""The same for updates of parameters in two bytes with states in four, and a master."""


@dataclass(frozen=True, slots=True)
class ExpectedUpdate:
    """A schedule of ``Update`` steps, and the seconds of each on a machine."""

    schedule: Schedule
    seconds: Mapping[str, float]


def expected_update(values: Sequence[Value], hardware: Hardware) -> ExpectedUpdate:
    """Return the update of every parameter among ``values`` whose gradient is among them.

    It streams through memory: it reads all its operands once, and writes all but gradients.
    """
    bundles = _bundles(values)
    steps: list[Update] = []
    for name, bundle in bundles.items():
        reads = tuple(each.name for each in bundle)
        writes = tuple(each.name for each in bundle if each.role is not Role.GRADIENT)
        steps.append(Update(name, reads, writes))
    used = [each for bundle in bundles.values() for each in bundle]
    schedule = Schedule(UPDATE_ROOM.name, tuple(used), tuple(steps))
    return ExpectedUpdate(schedule, update_seconds(schedule, hardware))


def update_seconds(update: Schedule, hardware: Hardware) -> dict[str, float]:
    """Return the seconds of each kernel of ``update``, which stream through memory."""
    values = {each.name: each for each in update.values}
    return {
        kernel_name(step): hardware.launch_s
        + sum(values[name].nbytes for name in (*step.reads, *step.writes))
        / hardware.memory_bytes_per_s
        for step in update.steps
        if isinstance(step, KERNELS)
    }


def streamed(
    update: ExpectedUpdate, homes: Mapping[str, Tier], window_bytes: int
) -> tuple[ExpectedUpdate, Mapping[str, Tier]]:
    """Return ``update`` as it streams with those ``homes``, and the homes of its pieces.

    What lives on the device is left out: it does not move.  A bucket whose other operands are
    more than ``window_bytes`` goes in pieces, each a value of its own.
    """
    nbytes = {each.name: each for each in update.schedule.values}
    values: list[Value] = []
    steps: list[Update] = []
    seconds: dict[str, float] = {}
    found: dict[str, Tier] = {}
    for step in update.schedule.steps:
        assert isinstance(step, Update), "an update has nothing but updates"
        moving = [nbytes[name] for name in step.reads if homes[name] is not Tier.DEVICE]
        # Each part of a piece takes whole pages.
        window = max(PAGE_BYTES, window_bytes - PAGE_BYTES * len(moving))
        count = max(1, -(-sum(each.nbytes for each in moving) // window))
        for piece in range(count):
            own = [_piece(each, piece, count) for each in moving]
            found |= {part.name: homes[whole.name] for part, whole in zip(own, moving, strict=True)}
            writes = tuple(
                part.name
                for part, whole in zip(own, moving, strict=True)
                if whole.name in step.writes
            )
            bucket = f"{step.bucket}[{piece}]"
            steps.append(Update(bucket, tuple(part.name for part in own), writes))
            seconds[bucket] = update.seconds[step.bucket] / count
            values += own
    schedule = Schedule(update.schedule.name, tuple(values), tuple(steps))
    return ExpectedUpdate(schedule, seconds), found


def merged(update: ExpectedUpdate, window_bytes: int, most: int) -> ExpectedUpdate:
    """Return ``update`` with about ``most`` steps, those that follow each other made one.

    Steps of more than ``most`` are taken together as long as their operands are no more than
    ``window_bytes``, nor than what ``most`` equal steps would have.
    """
    steps = [each for each in update.schedule.steps if isinstance(each, Update)]
    nbytes = {each.name: each.nbytes for each in update.schedule.values}
    if len(steps) <= most:
        return update
    share = min(window_bytes, sum(nbytes.values()) // most)
    taken: list[list[Update]] = []
    filled = 0
    for step in steps:
        own = sum(nbytes[name] for name in step.reads)
        if not taken or filled + own > share:
            taken.append([])
            filled = 0
        taken[-1].append(step)
        filled += own
    seconds = {each[0].bucket: sum(update.seconds[one.bucket] for one in each) for each in taken}
    together = (
        Update(
            each[0].bucket,
            tuple(name for one in each for name in one.reads),
            tuple(name for one in each for name in one.writes),
        )
        for each in taken
    )
    return ExpectedUpdate(update.schedule.with_steps(tuple(together)), seconds)


def _bundles(values: Sequence[Value]) -> dict[str, list[Value]]:
    """Return by parameter, itself, its gradient and its states, of those that are trained."""
    found: dict[str, list[Value]] = {}
    for value in values:
        if value.role in MANAGED_ROLES:
            found.setdefault(parameter_of(value), []).append(value)
    roles = {name: {each.role for each in bundle} for name, bundle in found.items()}
    trained = {Role.PARAMETER, Role.GRADIENT}
    return {name: bundle for name, bundle in found.items() if trained <= roles[name]}


def _piece(value: Value, piece: int, count: int) -> Value:
    first, end = value.nbytes * piece // count, value.nbytes * (piece + 1) // count
    return replace(value, name=f"{value.name}[{piece}]", nbytes=end - first)
