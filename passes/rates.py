"""The rows of the residency program that speak of time: stalls, stretches, and what is busy."""

from __future__ import annotations

from collections.abc import Mapping

from zcompile.ir import channel_in, channel_out
from zcompile.passes.clock import COMPUTE, UPDATE
from zcompile.passes.formulation import Formulation, Question, Rate, Sample, link_of
from zcompile.passes.groups import Group

MAX_STRETCH = 64.0
"""The most by which copies stretch a kernel: a fair share among five users is a fifth."""


def serial_s(question: Question, groups: tuple[Group, ...]) -> float:
    """Return more than the time that moving everything in every pause takes, one by one."""
    links = [
        link_of(question, way(tier)) for tier in question.tiers for way in (channel_in, channel_out)
    ]
    slowest = max((1 / link.bandwidth_bytes_per_s for link in links), default=0.0)
    seconds = 0.0
    for group in groups:
        copies = 2 * len(group.windows)
        per_byte = slowest + (group.remake_s_per_byte or 0.0)
        seconds += copies * group.nbytes * per_byte
    return seconds / question.bandwidth_share


def write_time(form: Formulation) -> None:
    """Add the columns of stalls and stretches, and that no resource does more than it can."""
    program, unit = form.program, form.unit_s
    least = [each.least_stall_s / unit for each in form.samples]
    most = serial_s(form.question, form.groups) / unit + sum(least)
    first = len(program.costs)
    for each in least:
        program.column(most, 1.0, each)
    form.stalls = range(first, first + len(form.samples))
    first = len(program.costs)
    for sample in form.samples:
        program.column(
            most if _in_pieces(form, sample) else MAX_STRETCH * sample.seconds / unit, 1.0
        )
    form.stretches = range(first, first + len(form.samples))
    for resource, users in sorted(_resources(form).items()):
        _rate(form, resource, users)
    _remaking(form)


def _in_pieces(form: Formulation, sample: Sample) -> bool:
    """Say whether the sampled kernel goes in pieces: between two of them it may wait."""
    return form.question.cycle.kernels[sample.kernel].in_pieces


def _resources(form: Formulation) -> dict[str, dict[str, float]]:
    """Return by resource the share that each channel and activity takes at full speed.

    A channel is a resource of its own unless it takes all of a shared one.
    """
    hardware = form.question.hardware
    found: dict[str, dict[str, float]] = {}
    for channel in form.flows:
        shares = link_of(form.question, channel).uses
        if not any(share >= 1 for _, share in shares):
            found[str(channel)] = {str(channel): 1.0}
        for resource, share in shares:
            found.setdefault(resource, {})[str(channel)] = share
    for activity, uses in ((COMPUTE, hardware.compute_uses), (UPDATE, hardware.update_uses)):
        for resource, share in uses:
            found.setdefault(resource, {})[activity] = share
    return found


def _rate(form: Formulation, resource: str, users: Mapping[str, float]) -> None:
    """No resource does more than it can, in any interval and over the whole iteration."""
    rates = form.rows.rates.setdefault(resource, [])
    stretches = COMPUTE in users or UPDATE in users
    scale = form.unit_bytes / form.unit_s / form.question.bandwidth_share
    moving = {
        flow.channel: share * scale / link_of(form.question, channel).bandwidth_bytes_per_s
        for channel, flow in form.flows.items()
        if (share := users.get(str(channel)))
    }
    if not moving:
        return
    left_s = 0.0
    for at, sample in enumerate(form.samples):
        free_s = sum(s * (1 - users.get(each, 0.0)) for each, s in sample.before_s.items())
        terms = [(form.flows[each].between[at], factor) for each, factor in moving.items()]
        rates.append(_row(form, terms, free_s, (form.stalls[at],)))
        own_s = sample.seconds * (1 - users.get(sample.activity, 0.0))
        terms = [(form.flows[each].beside[at], factor) for each, factor in moving.items()]
        waits = (form.stretches[at],) if stretches or _in_pieces(form, sample) else ()
        rates.append(_row(form, terms, own_s, waits))
        left_s += free_s + own_s
    terms = [
        (column, users[str(channel)] * per_byte)
        for channel in moving
        for column, per_byte in form.flows[channel].total
    ]
    rates.append(_row(form, terms, left_s, (*form.stalls, *form.stretches)))


def _row(
    form: Formulation, terms: list[tuple[int, float]], free_s: float, waits: tuple[int, ...]
) -> Rate:
    terms = [*terms, *((column, -1.0) for column in waits)]
    return Rate(form.program.at_most.add(terms, free_s / form.unit_s), free_s, waits)


def _remaking(form: Formulation) -> None:
    """What is made again takes the time of the kernels that make it."""
    terms: list[tuple[int, float]] = []
    for (number, _, tier), column in form.away.items():
        rate = form.groups[number].remake_s_per_byte
        if tier is None and rate is not None:
            terms.append((column, rate * form.unit_bytes / form.unit_s))
    if terms:
        terms += [(column, -1.0) for column in form.stalls]
        form.program.at_most.add(terms, 0.0)
