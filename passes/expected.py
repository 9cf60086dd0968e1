"""The update that an iteration is expected to end with, before any optimizer has run.

Planning looks at whole iterations, and the update moves most of the bytes: every gradient,
parameter and state of what is trained, parameter by parameter, in pieces where they are large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    channel_in,
    channel_out,
    kernel_name,
)
from zcompile.passes.placement import parameter_of

UPDATE_ROOM = Schedule("update", (), (Compute("window", (), (), 64 << 10),))
"""What the smallest update needs, as a graph that every placement has to leave room for."""

LARGER_UPDATE_ROOM = Schedule("update", (), (Compute("window", (), (), 128 << 10),))
"""The same for updates of parameters in two bytes with states in four, and a master."""


NUM_RUNS = 10
"""From so many places an excerpt of an update is taken."""


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
    for step in _updates(update):
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


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Some buckets of an update that speak for all: it takes ``times`` as long as they do.

    It takes no less than ``least_s``, for which all its kernels run, or a channel or resource is
    busy.
    """

    update: ExpectedUpdate
    times: float
    least_s: float

    def seconds(self, seconds: float) -> float:
        """Return how long the whole update takes if the excerpt takes ``seconds``."""
        return max(self.least_s, self.times * seconds)


def excerpt(
    update: ExpectedUpdate, homes: Mapping[str, Tier], hardware: Hardware, most: int
) -> Excerpt:
    """Return ``update``, streamed with those ``homes``, if it has no more than ``most`` steps.

    Of more, about as many: runs of steps that follow each other, at equal distances.
    """
    steps = _updates(update)
    if len(steps) <= most:
        return Excerpt(update, 1.0, 0.0)
    starts = (len(steps) * at // NUM_RUNS for at in range(NUM_RUNS))
    chosen = [each for at in starts for each in steps[at : at + most // NUM_RUNS]]
    values = {each.name: each for each in update.schedule.values}
    own = tuple(values[name] for step in chosen for name in step.reads)
    schedule = Schedule(update.schedule.name, own, tuple(chosen))
    whole, part = (
        _loads(each, update.seconds, values, homes, hardware) for each in (steps, chosen)
    )
    busiest = max(whole, key=lambda each: (whole[each], each))
    times = whole[busiest] / part[busiest] if part[busiest] else len(steps) / len(chosen)
    seconds = {step.bucket: update.seconds[step.bucket] for step in chosen}
    return Excerpt(ExpectedUpdate(schedule, seconds), times, whole[busiest])


def _loads(
    steps: Iterable[Update],
    seconds: Mapping[str, float],
    values: Mapping[str, Value],
    homes: Mapping[str, Tier],
    hardware: Hardware,
) -> dict[str, float]:
    """Return for how long the kernels of ``steps``, each channel and each resource are needed."""
    found: dict[str, float] = {"kernels": 0.0}
    for step in steps:
        found["kernels"] += seconds[step.bucket]
        for resource, share in hardware.update_uses:
            found[resource] = found.get(resource, 0.0) + share * seconds[step.bucket]
        copies = [channel_in(homes[name]) for name in step.reads]
        sizes = [values[name].nbytes for name in step.reads]
        copies += [channel_out(homes[name]) for name in step.writes]
        sizes += [values[name].nbytes for name in step.writes]
        for channel, nbytes in zip(copies, sizes, strict=True):
            if (link := hardware.links.get(channel)) is None:
                continue  # The simulation says so.
            found[channel] = found.get(channel, 0.0) + link.travel_s(nbytes)
            for resource, share in link.uses:
                found[resource] = found.get(resource, 0.0) + share * link.travel_s(nbytes)
    return found


def _updates(update: ExpectedUpdate) -> list[Update]:
    return [each for each in update.schedule.steps if isinstance(each, Update)]


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
    name = f"{value.name}[{piece}]"
    return Value(name, end - first, value.role, value.home, value.held)
