"""Preferences: which values deserve the device, by the linear program and by a simple rule.

What the runtime can carry out gives each value one home, so the program is asked for plans of
that kind (`Question.homes`), and what it keeps on the device becomes an order for `place`, which
measures exactly what fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from zcompile.ir import MANAGED_ROLES, Hardware, Target, Value, channel_in, channel_out
from zcompile.passes.cycle import Cycle, CycleValue
from zcompile.passes.formulation import Question
from zcompile.passes.place import MAX_PREFETCH_BYTES, Preference
from zcompile.passes.placement import DoesNotFit, parameter_of
from zcompile.passes.relaxation import SAMPLES, Stay, relax

BANDWIDTH_SHARES = (1.0, 0.97, 0.92)
"""The program plans for all of the bandwidth, and for a little less: real copies come in lumps."""

COST_DIGITS = 15
"""Decimals of the seconds that a byte costs; a fast link takes 1e-11 of them."""

TRAFFIC_WEIGHT = 1e-2
"""What a second of copying costs beside a second of time: it settles what time leaves open."""


def preferences(
    cycle: Cycle, hardware: Hardware, target: Target, samples: int = SAMPLES
) -> Iterator[Preference]:
    """Yield preferences to try, the plainest first: kind by kind, by traffic, by the program.

    Each order comes with several amounts of room to prefetch into.  Room for what one kernel
    needs, or none, is often enough, since only at the fullest kernel is there no more, and what is
    left can live there.  Where the budgets are too small for the program, there are only the
    plain ones.
    """
    largest = max((kernel.operand_bytes for kernel in cycle.kernels), default=0)
    orders = [Preference()]
    yield orders[0]
    for each in _orders(cycle, hardware, target, samples):
        orders.append(each)
        for room in (0, largest):
            yield replace(each, prefetch_bytes=room)
    yield from orders[1:]
    for room in (2 * largest, 4 * largest):
        for each in orders:
            yield replace(each, prefetch_bytes=room)


def whole_bundles(values: Sequence[Value]) -> tuple[Preference, ...]:
    """Return preferences that keep a parameter together with its gradient and states.

    Then what does not live on the device can be updated before the step, from files alone.  The
    first parameters come first: their gradients are the last, and leave no time for that.
    """
    found: dict[str, list[str]] = {}
    for value in values:
        if value.role in MANAGED_ROLES:
            found.setdefault(parameter_of(value), []).append(value.name)
    order = tuple(name for bundle in found.values() for name in bundle)
    reason = "with all that belongs to its parameter, so that it can be updated early"
    largest = max((value.nbytes for value in values), default=0)
    return tuple(
        Preference(order, prefetch_bytes=room, reason=reason)
        for room in (MAX_PREFETCH_BYTES, largest, 0)
    )


def _orders(cycle: Cycle, hardware: Hardware, target: Target, samples: int) -> Iterator[Preference]:
    shares = BANDWIDTH_SHARES if target.device_budget is not None else ()
    for at, share in enumerate(shares):
        yield from _by_program(cycle, hardware, target, share, samples)
        if not at:
            yield _by_traffic(cycle, hardware, target)


def _by_traffic(cycle: Cycle, hardware: Hardware, target: Target) -> Preference:
    """Prefer what saves the most seconds of copying for each byte that lives on the device."""
    costs = _costs(cycle, hardware, target)
    nbytes = {value.name: value.nbytes for value in cycle.values}
    # Of equals the largest first: what room they leave is for small ones.
    order = sorted(costs, key=lambda name: (-costs[name], -nbytes[name]))
    return Preference(tuple(order), reason="by the seconds of copying that each byte saves")


def _costs(cycle: Cycle, hardware: Hardware, target: Target) -> dict[str, float]:
    """Return by value the seconds of copying that each of its bytes saves if it stays."""
    tier = Question(cycle, hardware, target).tiers[-1:]
    costs: dict[str, float] = {}
    for value in cycle.values:
        seconds = sum(
            _copies_s(value, hardware.links[channel].travel_s(value.nbytes), into)
            for each in tier
            for channel, into in ((channel_in(each), True), (channel_out(each), False))
        )
        # Rounded, so that kinds that cost the same are equals.
        costs[value.name] = round(seconds / max(1, value.nbytes), COST_DIGITS)
    return costs


def _copies_s(value: CycleValue, seconds: float, into: bool) -> float:
    if into:
        return seconds * sum(pause.needed and pause.crosses for pause in value.pauses)
    return seconds * len({pause.version for pause in value.pauses if pause.written and pause.live})


def _by_program(
    cycle: Cycle, hardware: Hardware, target: Target, share: float, samples: int
) -> list[Preference]:
    question = Question(
        cycle,
        hardware,
        target,
        homes=True,
        traffic_weight=TRAFFIC_WEIGHT,
        bandwidth_share=share,
    )
    try:
        residency = relax(question, samples).residency
    except DoesNotFit:
        return []
    scores = {value.name: _score(value, residency) for value in cycle.values}
    costs = _costs(cycle, hardware, target)
    nbytes = {value.name: value.nbytes for value in cycle.values}
    reason = f"by linear programming at {share:.0%} of bandwidth"
    orders = (
        sorted(scores, key=lambda name: scores[name]),
        # Of what the program treats alike, what saves most first, should not all of it fit.
        sorted(scores, key=lambda name: (scores[name], -costs[name], -nbytes[name])),
    )
    # The host is for what the program has there rather than on nvme, however much of it is away.
    shares = {name: on_nvme / away if away else 0.0 for name, (away, on_nvme) in scores.items()}
    by_share = sorted(
        scores, key=lambda name: (round(shares[name], 9), -costs[name], -nbytes[name])
    )
    to_host = tuple(by_share)
    return [
        Preference(tuple(order), reason=reason, saved_leaves=True, host_order=host)
        for order, host in zip(orders, (to_host, None), strict=True)
    ]


def _score(value: CycleValue, residency: Mapping[str, tuple[Stay, ...]]) -> tuple[float, float]:
    """Return what of ``value`` is away, and what of it is on nvme: the less, the hotter."""
    stays = [
        stay
        for pause, stay in zip(value.pauses, residency[value.name], strict=True)
        if pause.crosses
    ]
    nbytes = max(1, value.nbytes * len(stays))
    away = sum(stay.away_bytes for stay in stays)
    return round(away / nbytes, 9), round(sum(stay.nvme_bytes for stay in stays) / nbytes, 9)
