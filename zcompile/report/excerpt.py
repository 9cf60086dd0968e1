"""The readable form of a plan: a header, and the steps beside the bytes that they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from zcompile.ir import (
    Role,
    Schedule,
    Step,
    Target,
    arena_peak_bytes,
    device_profile,
    peak_bytes,
    render_step,
)
from zcompile.report.traffic import planned_traffic
from zcompile.report.units import CHANNEL_LABELS, clipped, mebibytes

LINE_WIDTH = 100
"""Columns of a printed line; a kernel may read hundreds of values."""

MAX_WHOLE = 60
"""A schedule of at most so many steps is shown whole."""

NUM_EDGE = 16
"""How many steps an excerpt shows at the start and at the end."""

NUM_NEAR_PEAK = 6
"""How many steps an excerpt shows to each side of the one that holds most."""


def header(schedule: Schedule, target: Target, pipeline: str) -> list[str]:
    """Return the lines that sum up a plan, each a comment of the text form."""
    profile = device_profile(schedule, target)
    peak = peak_bytes(schedule, target)
    at = f" at step {profile.index(peak)}" if peak in profile else ""
    budget = target.device_budget
    limit = "no budget" if budget is None else f"budget {mebibytes(budget)}"
    facts = [
        ("pipeline", pipeline),
        ("device", f"peak {mebibytes(peak)}{at}, {limit}"),
        (
            "of it",
            f"{'vacated' if schedule.vacates else 'static'} arena "
            f"{mebibytes(arena_peak_bytes(schedule))}, "
            f"reserved outside this graph {mebibytes(target.reserved_bytes)}",
        ),
        *(("moves", line) for line in _moves(schedule)),
        *(("holds", line) for line in _holds(schedule)),
    ]
    kinds = ", ".join(_counted(schedule.steps))
    return [f"# {schedule.name}: {kinds}", *(f"# {what:<9} {fact}" for what, fact in facts)]


def steps_with_bytes(schedule: Schedule, target: Target, *, whole: bool = False) -> list[str]:
    """Return one line a step: its number, the MiB that the device holds then, what it does.

    Of a long schedule only the start, the peak and the end are shown, unless ``whole``.
    """
    steps = schedule.steps
    if not steps:
        return []
    held = device_profile(schedule, target)
    shown = range(len(steps)) if whole else _shown(held)
    lines = [f"{'step':>5} {'MiB held':>9}"]
    last = -1
    for at in shown:
        if at > last + 1:
            skipped = steps[last + 1 : at]
            lines.append(f"{'...':>5} {'':>9}  {len(skipped)} steps: " + _brief(skipped))
        line = f"{at:5d} {held[at] / (1 << 20):9.1f}  {render_step(steps[at])}"
        lines.append(clipped(line, LINE_WIDTH))
        last = at
    return lines


def _shown(held: Sequence[int]) -> list[int]:
    """Return the numbers of the steps in an excerpt, ascending."""
    length = len(held)
    if length <= MAX_WHOLE:
        return list(range(length))
    peak = held.index(max(held))
    near_peak = range(max(0, peak - NUM_NEAR_PEAK), min(length, peak + NUM_NEAR_PEAK + 1))
    return sorted({*range(NUM_EDGE), *near_peak, *range(length - NUM_EDGE, length)})


def _moves(schedule: Schedule) -> Iterator[str]:
    for channel, traffic in planned_traffic(schedule).items():
        copies = _number(traffic.num_copies, "copy", "copies")
        yield f"{mebibytes(traffic.moved_bytes)} in {copies}: {CHANNEL_LABELS[channel]}"


def _holds(schedule: Schedule) -> Iterator[str]:
    """Sum up the values by role and home, in the order of their first appearance."""
    groups: dict[tuple[str, str], list[int]] = {}
    for value in schedule.values:
        groups.setdefault((value.role, value.home), []).append(value.nbytes)
    for (role, home), sizes in groups.items():
        kind = "saved activation" if role is Role.SAVED else str(role)
        yield f"{_number(len(sizes), kind, f'{kind}s')} @ {home}: {mebibytes(sum(sizes))}"


def _counted(steps: Sequence[Step]) -> Iterator[str]:
    yield _number(len(steps), "step", "steps")
    yield from (f"{number} {kind}" for kind, number in _kinds(steps).items())


def _brief(steps: Sequence[Step]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in _kinds(steps).items())


def _kinds(steps: Sequence[Step]) -> Counter[str]:
    return Counter(type(step).__name__.lower() for step in steps)


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
