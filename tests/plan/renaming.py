"""Schedules under other names, to show that names decide nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from zcompile.ir import Compute, Fetch, Offload, Release, Schedule, Step, Update, Wait


def other_names(cycle: Sequence[Schedule]) -> dict[str, str]:
    """Return other names for the values of ``cycle``, which sort the other way round."""
    names = sorted({value.name for graph in cycle for value in graph.values}, reverse=True)
    return {name: f"n{at:04}" for at, name in enumerate(names)}


def renamed(schedule: Schedule, new: Mapping[str, str]) -> Schedule:
    """Return ``schedule`` with the ``new`` names of its values."""

    def step(each: Step) -> Step:
        match each:
            case Compute() | Update():
                reads = tuple(new[name] for name in each.reads)
                return replace(each, reads=reads, writes=tuple(new[name] for name in each.writes))
            case Fetch() | Wait() | Offload() | Release():
                return replace(each, value=new[each.value])

    return replace(
        schedule,
        values=tuple(replace(value, name=new[value.name]) for value in schedule.values),
        steps=tuple(map(step, schedule.steps)),
        outputs=tuple(new[name] for name in schedule.outputs),
    )
