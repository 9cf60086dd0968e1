"""The columns and rows of the residency program; `zcompile.passes.formulation` says what they are.

Note [Late copies].  Dirty bytes that leave right after their kernel take memory until they are
written.  Such as stay for a while and leave later may be written meanwhile, at any time; these
count against the time of their channel over the whole iteration only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import frexp, ldexp

from zcompile.ir import Channel, Tier, channel_in, channel_out
from zcompile.passes.formulation import (
    Flow,
    Formulation,
    Question,
    Rate,
    link_of,
    samples_of,
)
from zcompile.passes.groups import Group, Window, grouped
from zcompile.passes.linear import Program
from zcompile.passes.simulate import COMPUTE, UPDATE

MAX_STRETCH = 64.0
"""The most by which copies stretch a kernel: a fair share among five users is a fifth."""

ABOUT_ONE = 1024
"""Columns are scaled so that the largest is about this."""

Levels = dict[tuple[Tier | None, bool], range]
"""By tier, and whether the pauses are live: the bytes that are away at every sample."""


def formulate(question: Question, samples: tuple[int, ...]) -> Formulation:
    """Return the linear program of ``question`` that looks at the kernels ``samples``."""
    groups = grouped(question.cycle, samples)
    total = sum(group.nbytes for group in groups)
    seconds = question.cycle.kernel_s + _serial_s(question, groups)
    found = Formulation(
        question, samples_of(question, samples), groups, _unit(total), _unit(seconds)
    )
    _Writer(found).write()
    return found


def _unit(largest: float) -> float:
    """Return the power of two by which ``largest`` becomes about `ABOUT_ONE`."""
    return ldexp(1.0, frexp(largest or 1.0)[1]) / ABOUT_ONE


def _serial_s(question: Question, groups: tuple[Group, ...]) -> float:
    """Return more than the time that moving everything in every pause takes, one by one."""
    links = [
        link_of(question, way(tier)) for tier in question.tiers for way in (channel_in, channel_out)
    ]
    slowest = max((1 / link.bandwidth_bytes_per_s for link in links), default=0.0)
    latency = max((link.latency_s for link in links), default=0.0)
    seconds = 0.0
    for group in groups:
        copies = 2 * len(group.windows)
        per_byte = slowest + latency / group.largest_bytes + (group.remake_s_per_byte or 0.0)
        seconds += copies * group.nbytes * per_byte
    return seconds / question.bandwidth_share


class _Writer:
    """Writes the program of one formulation."""

    def __init__(self, form: Formulation) -> None:
        self._form = form
        self._question = form.question
        self._program: Program = form.program
        self._num = len(form.samples)
        self._total = sum(group.nbytes for group in form.groups) / form.unit_bytes
        self._events: dict[Channel, dict[int, list[int]]] = {}
        self._totals: dict[Channel, list[tuple[int, float]]] = {}
        self._late: dict[tuple[int, int, Tier], int] = {}

    def write(self) -> None:
        for number, group in enumerate(self._form.groups):
            if self._question.homes:
                self._home_columns(number, group)
            else:
                self._pause_columns(number, group)
            self._moves(number, group)
        levels = self._levels()
        for tier in self._question.tiers:
            self._reads(channel_in(tier), levels[tier, True])
            self._writes(channel_out(tier))
        self._time()
        self._device(levels)
        self._host(levels)

    def _pause_columns(self, number: int, group: Group) -> None:
        for at, window in enumerate(group.windows):
            if not window.live or not window.num_samples:
                continue
            options: list[Tier | None] = list(self._question.tiers)
            if group.remake_s_per_byte is not None and window.needed:
                options.append(None)
            size = group.nbytes / self._form.unit_bytes
            for option in options:
                self._form.away[number, at, option] = self._program.column(size)
            terms = [(self._form.away[number, at, option], 1.0) for option in options]
            if len(terms) > 1:
                self._program.at_most.add(terms, size)

    def _home_columns(self, number: int, group: Group) -> None:
        size = group.nbytes / self._form.unit_bytes
        home = {tier: self._program.column(size) for tier in self._question.tiers}
        if len(home) > 1:
            self._program.at_most.add([(column, 1.0) for column in home.values()], size)
        for at, window in enumerate(group.windows):
            if not (window.live or group.lasting):
                continue
            for tier, column in home.items():
                if window.crosses or not window.live:
                    self._form.away[number, at, tier] = column
                elif window.num_samples:
                    own = self._program.column(size)
                    self._form.away[number, at, tier] = own
                    self._program.at_most.add([(own, 1.0), (column, -1.0)], 0.0)

    def _moves(self, number: int, group: Group) -> None:
        """Note what has to travel because of what is away, and when."""
        for (at, tier), column in self._of_group(number):
            window = group.windows[at]
            if window.live and window.needed:
                self._travels(channel_in(tier), group, column, window.end)
            if window.live and window.written:
                self._leaves(number, at, tier, column)

    def _of_group(self, number: int) -> Iterator[tuple[tuple[int, Tier], int]]:
        group = self._form.groups[number]
        for at in range(len(group.windows)):
            for tier in self._question.tiers:
                if (column := self._form.away.get((number, at, tier))) is not None:
                    yield (at, tier), column

    def _leaves(self, number: int, at: int, tier: Tier, column: int) -> None:
        """Count a copy out once for all pauses of a version; see Note [Late copies]."""
        group = self._form.groups[number]
        window = group.windows[at]
        if window.first:
            self._travels(channel_out(tier), group, column, window.start)
            return
        first = self._first(number, window, tier)
        if first == column:
            return
        late = self._late.get((number, window.version, tier))
        if late is None:
            late = self._program.column(group.nbytes / self._form.unit_bytes)
            self._late[number, window.version, tier] = late
            self._travels(channel_out(tier), group, late, None)
        terms = [(column, 1.0), (late, -1.0)]
        if first is not None:
            terms.append((first, -1.0))
        self._program.at_most.add(terms, 0.0)

    def _first(self, number: int, window: Window, tier: Tier) -> int | None:
        """Return the column of the first pause of the version of ``window``, if there is one."""
        for at, other in enumerate(self._form.groups[number].windows):
            if other.first and other.version == window.version:
                return self._form.away.get((number, at, tier))
        return None

    def _travels(self, channel: Channel, group: Group, column: int, when: int | None) -> None:
        link = link_of(self._question, channel)
        per_byte = (
            1 / (link.bandwidth_bytes_per_s * self._question.bandwidth_share)
            + link.latency_s / group.largest_bytes
        )
        per_byte *= self._form.unit_bytes / self._form.unit_s
        self._totals.setdefault(channel, []).append((column, per_byte))
        if when is not None:
            self._events.setdefault(channel, {}).setdefault(when, []).append(column)

    def _levels(self) -> Levels:
        found: Levels = {}
        members: dict[tuple[Tier | None, bool], list[tuple[Window, int]]] = {
            (tier, True): [] for tier in self._question.tiers
        }
        for (number, at, tier), column in self._form.away.items():
            window = self._form.groups[number].windows[at]
            if window.num_samples:
                members.setdefault((tier, window.live), []).append((window, column))
        for key, covering in members.items():
            found[key] = self._level(covering)
        return found

    def _level(self, covering: list[tuple[Window, int]]) -> range:
        """Add the bytes of ``covering`` at every sample, as differences."""
        level = self._program.columns(self._num, self._total)
        changes: list[list[tuple[int, float]]] = [[] for _ in level]
        for window, column in covering:
            if -window.start % self._num < window.num_samples:
                changes[0].append((column, -1.0))
            if window.num_samples == self._num:
                continue
            for at, factor in ((window.start, -1.0), (window.end, 1.0)):
                if at:
                    changes[at].append((column, factor))
        for at, terms in enumerate(changes):
            before = [(level[at - 1], -1.0)] if at else []
            self._program.equal.add([(level[at], 1.0), *before, *terms], 0.0)
        return level

    def _flow(self, channel: Channel) -> Flow:
        per_byte = 1 / (
            link_of(self._question, channel).bandwidth_bytes_per_s * self._question.bandwidth_share
        )
        cost = self._question.traffic_weight * per_byte * self._form.unit_bytes / self._form.unit_s
        most = self._total * max((len(group.windows) for group in self._form.groups), default=0)
        first = len(self._program.costs)
        for _ in range(2 * self._num):
            self._program.column(most, cost)
        level = self._program.columns(2 * self._num, self._total)
        num = self._num
        flow = Flow(
            channel,
            range(first, first + num),
            range(first + num, first + 2 * num),
            level[:num],
            level[num:],
            self._totals.get(channel, []),
        )
        self._form.flows[channel] = flow
        return flow

    def _reads(self, channel: Channel, away: range) -> None:
        flow, due = self._flow(channel), self._events.get(channel, {})
        for at in range(self._num):
            start, end, before = flow.at_start[at], flow.at_end[at], flow.at_end[at - 1]
            equal = self._program.equal
            equal.add([(end, 1.0), (start, -1.0), (flow.beside[at], -1.0)], 0.0)
            terms = [(column, 1.0) for column in due.get(at, ())]
            # With a single sample the level before it is the one after it.
            equal.add([(start, 1.0), (before, -1.0), (flow.between[at], -1.0), *terms], 0.0)
            self._program.at_most.add([(end, 1.0), (away[at], -1.0)], 0.0)

    def _writes(self, channel: Channel) -> None:
        flow, made = self._flow(channel), self._events.get(channel, {})
        for at in range(self._num):
            start, end, before = flow.at_start[at], flow.at_end[at], flow.at_end[at - 1]
            equal = self._program.equal
            equal.add([(end, 1.0), (start, -1.0), (flow.beside[at], 1.0)], 0.0)
            terms = [(column, -1.0) for column in made.get(at, ())]
            equal.add([(start, 1.0), (before, -1.0), (flow.between[at], 1.0), *terms], 0.0)

    def _time(self) -> None:
        form, program, unit = self._form, self._program, self._form.unit_s
        least = [each.least_stall_s / unit for each in form.samples]
        most = _serial_s(self._question, form.groups) / unit + sum(least)
        first = len(program.costs)
        for each in least:
            program.column(most, 1.0, each)
        form.stalls = range(first, first + self._num)
        first = len(program.costs)
        for sample in form.samples:
            program.column(MAX_STRETCH * sample.seconds / unit, 1.0)
        form.stretches = range(first, first + self._num)
        for resource, users in sorted(self._resources().items()):
            self._rate(resource, users)
        self._remaking()

    def _resources(self) -> dict[str, dict[str, float]]:
        """Return by resource the share that each channel and activity takes at full speed.

        A channel is a resource of its own unless it takes all of a shared one.
        """
        hardware = self._question.hardware
        found: dict[str, dict[str, float]] = {}
        for channel in self._form.flows:
            shares = link_of(self._question, channel).uses
            if not any(share >= 1 for _, share in shares):
                found[str(channel)] = {str(channel): 1.0}
            for resource, share in shares:
                found.setdefault(resource, {})[str(channel)] = share
        for activity, uses in ((COMPUTE, hardware.compute_uses), (UPDATE, hardware.update_uses)):
            for resource, share in uses:
                found.setdefault(resource, {})[activity] = share
        return found

    def _rate(self, resource: str, users: Mapping[str, float]) -> None:
        """No resource does more than it can, in any interval and over the whole iteration."""
        form = self._form
        rates = form.rows.rates.setdefault(resource, [])
        stretches = COMPUTE in users or UPDATE in users
        scale = form.unit_bytes / form.unit_s / self._question.bandwidth_share
        moving = {
            flow.channel: share * scale / link_of(self._question, channel).bandwidth_bytes_per_s
            for channel, flow in form.flows.items()
            if (share := users.get(str(channel)))
        }
        if not moving:
            return
        left_s = 0.0
        for at, sample in enumerate(form.samples):
            free_s = sum(s * (1 - users.get(each, 0.0)) for each, s in sample.before_s.items())
            terms = [(form.flows[each].between[at], factor) for each, factor in moving.items()]
            rates.append(self._row(terms, free_s, (form.stalls[at],)))
            own_s = sample.seconds * (1 - users.get(sample.activity, 0.0))
            terms = [(form.flows[each].beside[at], factor) for each, factor in moving.items()]
            rates.append(self._row(terms, own_s, (form.stretches[at],) if stretches else ()))
            left_s += free_s + own_s
        terms = [
            (column, users[str(channel)] * per_byte)
            for channel in moving
            for column, per_byte in form.flows[channel].total
        ]
        rates.append(self._row(terms, left_s, (*form.stalls, *form.stretches)))

    def _row(self, terms: list[tuple[int, float]], free_s: float, waits: tuple[int, ...]) -> Rate:
        terms = [*terms, *((column, -1.0) for column in waits)]
        return Rate(self._program.at_most.add(terms, free_s / self._form.unit_s), free_s, waits)

    def _remaking(self) -> None:
        """What is made again takes the time of the kernels that make it."""
        form = self._form
        terms: list[tuple[int, float]] = []
        for (number, _, tier), column in form.away.items():
            rate = form.groups[number].remake_s_per_byte
            if tier is None and rate is not None:
                terms.append((column, rate * form.unit_bytes / form.unit_s))
        if terms:
            terms += [(column, -1.0) for column in form.stalls]
            self._program.at_most.add(terms, 0.0)

    def _device(self, levels: Levels) -> None:
        form = self._form
        fixed = self._fixed_bytes()
        for at in range(self._num):
            room = (self._question.device_bytes - fixed[at]) / form.unit_bytes
            away = [(level[at], -1.0) for level in levels.values()]
            for side in ("at_start", "at_end"):
                inside = [(getattr(flow, side)[at], 1.0) for flow in form.flows.values()]
                form.rows.device.append(self._program.at_most.add([*inside, *away], room))

    def _fixed_bytes(self) -> list[int]:
        """Return what every sample holds if nothing is away."""
        changes = [0] * self._num
        base = 0
        for group in self._form.groups:
            for window in group.windows:
                is_held = window.live or (self._question.homes and group.lasting)
                if not window.num_samples or not is_held:
                    continue
                base += group.nbytes if -window.start % self._num < window.num_samples else 0
                if window.num_samples < self._num:
                    changes[window.start] += group.nbytes
                    changes[window.end] -= group.nbytes
        found = [base]
        for change in changes[1:]:
            found.append(found[-1] + change)
        return [
            each + sample.fixed_bytes
            for each, sample in zip(found, self._form.samples, strict=True)
        ]

    def _host(self, levels: Levels) -> None:
        if Tier.HOST not in self._question.tiers:
            return
        form, limit = self._form, self._question.host_bytes / self._form.unit_bytes
        for column in levels[Tier.HOST, True]:
            form.rows.host.append(self._program.at_most.add([(column, 1.0)], limit))
        if not self._question.homes:
            return
        lasting = {
            form.away[number, at, Tier.HOST]: None
            for number, group in enumerate(form.groups)
            if all(window.live for window in group.windows)
            for at, window in enumerate(group.windows)
            if window.crosses
        }
        terms = [(column, 1.0) for column in lasting]
        form.rows.host.append(self._program.at_most.add(terms, limit))
