"""Neighbours: small changes to a placement, for simulation to judge.

The linear program may cut values and give each pause of a value a tier of its own; a plan gives
each value one home, and what it makes of the program is out of balance: one channel is idle while
another is waited for.  A neighbour gives every second value of one kind a slower tier, and
values of another kind the room that this leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from zcompile.ir import Role, Tier, Value
from zcompile.passes.place import Preference
from zcompile.passes.placement import Placement

PART = 2
"""Of a kind every second value goes: spread, since each part of a graph has some."""

ROLES = (Role.GRADIENT, Role.SAVED, Role.STATE, Role.PARAMETER)
"""What leaves, and what comes instead: first what helped most often in the corpus."""


@dataclass(frozen=True, slots=True)
class Change:
    """Of the role ``leaves`` every second value makes room on ``tier`` for the role ``comes``."""

    tier: Tier
    leaves: Role
    comes: Role


def changes(placement: Placement, values: Sequence[Value]) -> Iterator[Change]:
    """Yield every change that is possible with ``values`` at home as in ``placement``."""
    roles = {tier: {v.role for v in values if placement.homes[v.name] is tier} for tier in Tier}
    slower = {Tier.HOST: roles[Tier.NVME], Tier.DEVICE: roles[Tier.HOST] | roles[Tier.NVME]}
    for leaves, comes in permutations(ROLES, 2):
        for tier, below in slower.items():
            if leaves in roles[tier] and comes in below:
                yield Change(tier, leaves, comes)


def changed(
    preference: Preference, placement: Placement, values: Sequence[Value], change: Change
) -> Preference:
    """Return ``preference``, which has led to ``placement``, with ``change``."""
    device = _order(placement, values, Tier.DEVICE, change)
    host = _order(placement, values, Tier.HOST, change)
    return replace(preference, order=device, host_order=host)


def _order(
    placement: Placement, values: Sequence[Value], tier: Tier, change: Change
) -> tuple[str, ...]:
    """Return who deserves ``tier`` in which order, so that all is as it was but for ``change``."""
    homes = placement.homes
    there = [each for each in values if homes[each.name] is tier]
    rest = [each for each in values if homes[each.name] is not tier]
    if tier is not change.tier:
        return tuple(each.name for each in (*there, *rest))
    own = [each for each in there if each.role is change.leaves]
    leaving = [each.name for each in own[::PART]]
    stays = [each.name for each in there if each.name not in leaving]
    comes = [each.name for each in rest if each.role is change.comes]
    others = [each.name for each in rest if each.role is not change.comes]
    return (*stays, *comes, *others, *leaving)
