"""Ahead: which updates are expected to begin while backward still runs, and in which batches.

What the optimizer will do, as far as planning can tell: `docs/update.md` says what begins early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from zcompile.ir import Release, Role, Schedule, ScheduleError, Target, Tier, Update
from zcompile.passes.beside import Beside
from zcompile.passes.expected import ExpectedUpdate, streamed

BATCH_WINDOWS = 2
"""A batch moves at least so many times what it may hold at once."""

WINDOW_SHARE = 3
"""A piece of an update takes a third of the room: one arrives, one is updated, one leaves."""


def batches(
    names: Sequence[str], nbytes: Callable[[str], int], least_bytes: int
) -> tuple[tuple[str, ...], ...]:
    """Cut ``names``, in the order in which gradients come, into batches of ``least_bytes``.

    >>> batches("abcde", {"a": 1, "b": 5, "c": 1, "d": 1, "e": 1}.__getitem__, 3)
    (('a', 'b'), ('c', 'd', 'e'))
    """
    made: list[tuple[str, ...]] = []
    batch: list[str] = []
    for name in names:
        batch.append(name)
        if sum(map(nbytes, batch)) >= least_bytes:
            made.append(tuple(batch))
            batch = []
    return (*made, tuple(batch)) if batch else tuple(made)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What begins early, and what is ``left`` to the step; ``seconds`` are those of its kernels."""

    beside: tuple[Beside, ...]
    seconds: Mapping[str, Mapping[str, float]]
    left: ExpectedUpdate


def ahead(
    update: ExpectedUpdate,
    runs: Sequence[Schedule],
    target: Target,
    window_bytes: int,
    plan: Callable[[Schedule, Target], Schedule],
) -> Ahead:
    """Return which parts of ``update`` begin while ``runs``, planned, are under way.

    They are those of parameters that rest in files with all that belongs to them, and whose
    gradient comes home once.  They take ``window_bytes`` of the device.  The homes of ``target``
    count, its hardware and nothing else.  ``plan`` gives a schedule its copies.
    """
    steps = {_gradient(each): each for each in _updates(update)}
    nbytes = {each.name: each.nbytes for each in update.schedule.values}
    landings = {
        name: at
        for name, at in _landings(runs).items()
        if name in steps and all(target.homes[each] is Tier.NVME for each in steps[name].reads)
    }

    def moved_bytes(name: str) -> int:
        return sum(nbytes[each] for each in steps[name].reads)

    beside: list[Beside] = []
    seconds: dict[str, Mapping[str, float]] = {}
    done: set[str] = set()
    for names in batches(tuple(landings), moved_bytes, BATCH_WINDOWS * window_bytes):
        part = _part(update, [steps[name] for name in names], f"early_update.{len(beside)}")
        own, homes = streamed(part, target.homes, window_bytes // WINDOW_SHARE)
        own_seconds = {own.schedule.name: own.seconds}
        room = Target(
            device_budget=window_bytes,
            has_nvme=True,
            homes=homes,
            hardware=target.hardware,
            kernel_seconds=own_seconds,
        )
        try:
            planned = plan(own.schedule, room)
        except ScheduleError:  # it needs more than the window
            continue
        graph, step = landings[names[-1]]
        beside.append(Beside(planned, graph, step))
        seconds |= own_seconds
        done.update(steps[name].bucket for name in names)
    left = [each for each in _updates(update) if each.bucket not in done]
    return Ahead(tuple(beside), seconds, _part(update, left, update.schedule.name))


def _landings(runs: Sequence[Schedule]) -> dict[str, tuple[int, int]]:
    """Return by gradient that comes home once the graph and the step; the first to land first."""
    found: dict[str, tuple[int, int]] = {}
    again: set[str] = set()
    for graph, run in enumerate(runs):
        gradients = {each.name for each in run.values if each.role is Role.GRADIENT}
        for at, step in enumerate(run.steps):
            if isinstance(step, Release) and step.after is not None and step.value in gradients:
                if step.value in found:
                    again.add(step.value)
                found[step.value] = graph, at
    return {name: at for name, at in found.items() if name not in again}


def _updates(update: ExpectedUpdate) -> Iterator[Update]:
    return (each for each in update.schedule.steps if isinstance(each, Update))


def _gradient(step: Update) -> str:
    """Return the gradient that ``step`` reads: what it does not write."""
    (name,) = (each for each in step.reads if each not in step.writes)
    return name


def _part(update: ExpectedUpdate, steps: Sequence[Update], name: str) -> ExpectedUpdate:
    """Return the ``steps`` of ``update`` as an update called ``name``."""
    used = {each for step in steps for each in step.reads}
    values = tuple(each for each in update.schedule.values if each.name in used)
    schedule = replace(update.schedule, name=name, values=values, steps=tuple(steps))
    return ExpectedUpdate(schedule, {each.bucket: update.seconds[each.bucket] for each in steps})
