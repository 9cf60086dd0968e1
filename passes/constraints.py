"""The columns and rows of the residency program; `zcompile.passes.formulation` says what they are.

Note [Late copies].  Dirty bytes that leave right after their kernel take memory until they are
written.  Such as stay for a while and leave later may be written meanwhile, at any time; these
count against the time of their channel over the whole iteration only.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import frexp, ldexp

from zcompile.ir import Channel, Tier, channel_in, channel_out
from zcompile.passes.formulation import (
    Flow,
    Formulation,
    Question,
    link_of,
    samples_of,
)
from zcompile.passes.groups import Group, Window, grouped
from zcompile.passes.linear import Program
from zcompile.passes.rates import serial_s, write_time

ABOUT_ONE = 1024
"""Columns are scaled so that the largest is about this."""

Levels = dict[tuple[Tier | None, bool], range]
"""By tier, and whether the pauses are live: the bytes that are away at every sample."""


def formulate(question: Question, samples: tuple[int, ...]) -> Formulation:
    """Return the linear program of ``question`` that looks at the kernels ``samples``."""
    groups = grouped(question.cycle, samples, homes=question.homes)
    total = sum(group.nbytes for group in groups)
    seconds = question.cycle.kernel_s + serial_s(question, groups)
    found = Formulation(
        question, samples_of(question, samples), groups, _unit(total), _unit(seconds)
    )
    _Writer(found).write()
    return found


def _unit(largest: float) -> float:
    """Return the power of two by which ``largest`` becomes about `ABOUT_ONE`."""
    return ldexp(1.0, frexp(largest or 1.0)[1]) / ABOUT_ONE


def _graphs_begin(form: Formulation) -> tuple[int, ...]:
    """Return the samples that begin a graph, right after a sample that ends one."""
    kernels = form.question.cycle.kernels
    found: list[int] = []
    for at, sample in enumerate(form.samples):
        before = form.samples[at - 1].kernel
        is_next = (before + 1) % len(kernels) == sample.kernel
        if is_next and (sample.kernel == 0 or kernels[before].run != kernels[sample.kernel].run):
            found.append(at)
    return tuple(found)


class _Writer:
    """Writes the program of one formulation."""

    def __init__(self, form: Formulation) -> None:
        self._form = form
        self._question = form.question
        self._program: Program = form.program
        self._num = len(form.samples)
        self._total = sum(group.nbytes for group in form.groups) / form.unit_bytes
        self._events: dict[Channel, dict[int, list[int]]] = {}
        self._during: dict[Channel, dict[int, list[int]]] = {}
        self._totals: dict[Channel, list[tuple[int, float]]] = {}
        self._late: dict[tuple[int, int, Tier], int] = {}
        self._first = _graphs_begin(form) if form.question.homes else ()

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
        write_time(self._form)
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
                self._travels(channel_in(tier), column)
                self._at(channel_in(tier), column, window.end, window.due_during)
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
            self._travels(channel_out(tier), column)
            self._at(channel_out(tier), column, window.start, window.leaves_during)
            return
        first = self._first_of(number, window, tier)
        if first == column:
            return
        late = self._late.get((number, window.version, tier))
        if late is None:
            late = self._program.column(group.nbytes / self._form.unit_bytes)
            self._late[number, window.version, tier] = late
            self._travels(channel_out(tier), late)
        terms = [(column, 1.0), (late, -1.0)]
        if first is not None:
            terms.append((first, -1.0))
        self._program.at_most.add(terms, 0.0)

    def _first_of(self, number: int, window: Window, tier: Tier) -> int | None:
        """Return the column of the first pause of the version of ``window``, if there is one."""
        for at, other in enumerate(self._form.groups[number].windows):
            if other.first and other.version == window.version:
                return self._form.away.get((number, at, tier))
        return None

    def _at(self, channel: Channel, column: int, before: int, during: int) -> None:
        """Note that a copy is due, or made, before one sample, or during another if there is."""
        events = self._events if during < 0 else self._during
        when = before if during < 0 else during
        events.setdefault(channel, {}).setdefault(when, []).append(column)

    def _travels(self, channel: Channel, column: int) -> None:
        link = link_of(self._question, channel)
        per_byte = 1 / (link.bandwidth_bytes_per_s * self._question.bandwidth_share)
        per_byte *= self._form.unit_bytes / self._form.unit_s
        self._totals.setdefault(channel, []).append((column, per_byte))

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
        during = self._during.get(channel, {})
        for at in range(self._num):
            start, end, before = flow.at_start[at], flow.at_end[at], flow.at_end[at - 1]
            equal = self._program.equal
            terms = [(column, 1.0) for column in during.get(at, ())]
            equal.add([(end, 1.0), (start, -1.0), (flow.beside[at], -1.0), *terms], 0.0)
            terms = [(column, 1.0) for column in due.get(at, ())]
            # With a single sample the level before it is the one after it.
            equal.add([(start, 1.0), (before, -1.0), (flow.between[at], -1.0), *terms], 0.0)
            self._program.at_most.add([(end, 1.0), (away[at], -1.0)], 0.0)
        for at in self._first:
            # Nothing arrives before its graph begins.
            self._program.most[flow.at_end[at - 1]] = 0.0

    def _writes(self, channel: Channel) -> None:
        flow, made = self._flow(channel), self._events.get(channel, {})
        during = self._during.get(channel, {})
        for at in range(self._num):
            start, end, before = flow.at_start[at], flow.at_end[at], flow.at_end[at - 1]
            equal = self._program.equal
            terms = [(column, -1.0) for column in during.get(at, ())]
            equal.add([(end, 1.0), (start, -1.0), (flow.beside[at], 1.0), *terms], 0.0)
            terms = [(column, -1.0) for column in made.get(at, ())]
            equal.add([(start, 1.0), (before, -1.0), (flow.between[at], 1.0), *terms], 0.0)
        for at in self._first:
            # All has left before the next graph begins.
            self._program.most[flow.at_start[at]] = 0.0

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
        # A home on the host is there all the time; what is saved comes on top while it is away.
        lasting: dict[int, None] = {}
        saved: list[tuple[Window, int]] = []
        for number, group in enumerate(form.groups):
            for at, window in enumerate(group.windows):
                host = form.away.get((number, at, Tier.HOST))
                if host is None:
                    continue
                if group.lasting and (window.crosses or not window.live):
                    lasting[host] = None
                elif not group.lasting and window.live and window.num_samples:
                    saved.append((window, host))
        homes = [(column, 1.0) for column in lasting]
        for column in self._level(saved) if saved else ():
            form.rows.host.append(self._program.at_most.add([(column, 1.0), *homes], limit))
        form.rows.host.append(self._program.at_most.add(homes, limit))
