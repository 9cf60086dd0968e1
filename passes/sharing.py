"""Who runs how fast when several things need the same resources.

Max-min fair: all speeds rise together until a resource is full; whoever uses it stays at that
speed, and the others rise on (Bertsekas and Gallager, "Data Networks", section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zcompile.ir.hardware import Shares

FULL = 1.0


def speeds(running: Collection[str], uses: Mapping[str, Shares]) -> Mapping[str, float]:
    """Return the speed of each of ``running``: 1 at most, and the same for the same demands.

    ``uses`` gives what each takes of which resource at speed 1.

    >>> uses = {"read": (("disk", 1.0),), "write": (("disk", 1.0),), "compute": ()}
    >>> dict(speeds(["compute", "read", "write"], uses))
    {'compute': 1.0, 'read': 0.5, 'write': 0.5}
    """
    found = dict.fromkeys(running, FULL)
    rising = sorted(each for each in running if uses[each])
    left: dict[str, float] = {resource: FULL for each in rising for resource, _ in uses[each]}
    while rising:
        demands = _demands(rising, uses)
        level, tightest = min(
            (left[resource] / demands[resource], resource) for resource in demands
        )
        if level >= FULL:
            break
        stopped = [each for each in rising if any(name == tightest for name, _ in uses[each])]
        for each in stopped:
            found[each] = level
            for resource, share in uses[each]:
                left[resource] = max(0.0, left[resource] - level * share)
        rising = [each for each in rising if each not in stopped]
    return found


def _demands(running: Collection[str], uses: Mapping[str, Shares]) -> dict[str, float]:
    demands: dict[str, float] = {}
    for each in running:
        for resource, share in uses[each]:
            demands[resource] = demands.get(resource, 0.0) + share
    return demands
