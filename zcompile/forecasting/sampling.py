"""Few blocks of layers that stand for all in an update of many billions of parameters.

Planned whole, such an update is hundreds of thousands of steps, all alike.  So of each run of
blocks whose parameters have equal sizes and homes a few are planned, and then one more: what it
adds is what each of the others adds.  Its peak must be that of the few, or all are planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from zcompile.forecasting.layers import Layers
from zcompile.optim.chunks import Member

SAMPLED = 2
"""Blocks of a run that are planned."""

Key = tuple[str, int]
"""The path of a list of layers, and the number of a block in it."""

Sample = tuple[int, tuple[Member, ...]]
"""How often an update of these members counts, maybe less than never, and the members."""


def samples(members: tuple[Member, ...], lists: Sequence[Layers]) -> tuple[Sample, ...]:
    """Return updates of some of ``members`` that sum up to that of all of them.

    The first has few blocks of each run, each of the others one more of one run.
    """
    keys = [_key(each, lists) for each in members]
    runs = [run for run in _runs(members, keys) if len(run) > SAMPLED + 1]
    left_out = {key for run in runs for key in run[SAMPLED:]}

    def without(some: set[Key]) -> tuple[Member, ...]:
        kept = zip(members, keys, strict=True)
        return tuple(each for each, key in kept if key is None or key not in some)

    more = [(len(run) - SAMPLED, without(left_out - {run[SAMPLED]})) for run in runs]
    return ((1 - sum(count for count, _ in more), without(left_out)), *more)


def _key(member: Member, lists: Sequence[Layers]) -> Key | None:
    name = member.parts[0].name
    for each in lists:
        number, _, rest = name.removeprefix(each.prefix).partition(".")
        if name.startswith(each.prefix) and rest and number.isdecimal():
            block, _ = divmod(int(number) - each.first, each.unit)
            return (each.path, block) if block >= 0 else None
    return None


def _runs(members: Sequence[Member], keys: Sequence[Key | None]) -> Iterator[list[Key]]:
    """Yield stretches of blocks, one behind the other, that are alike."""
    of: dict[Key, list[object]] = {}
    for member, key in zip(members, keys, strict=True):
        if key is not None:
            of.setdefault(key, []).append(_likeness(member))
    for _, run in groupby(sorted(of), key=lambda key: (key[0], of[key])):
        yield list(run)


def _likeness(member: Member) -> object:
    """Return all of ``member`` that planning goes by, names left out."""
    parts = tuple((e.role, e.home, e.written, e.made, e.itemsize, e.per) for e in member.parts)
    return member.group, member.numel, member.itemsize, member.temporaries, parts
