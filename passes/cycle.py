"""Cycle: the whole iteration as one cyclic program, in which everything crosses graphs.

Forward, backward and update repeat for ever, so after the last kernel comes the first one, and
a value that the update changes is next needed by the following forward.

What always holds of a `Cycle`:

- the kernels are those of the graphs in order, each as often as its graph is named;
- every use of a value is a kernel of the cycle, and uses of one value are in order;
- a value has one pause after each use, up to the next one; the last runs over the end of the
  iteration, to the first use;
- names decide nothing: values are in the order in which they are first used.

Note [Live and dead pauses].  During a dead pause nobody needs the bytes: the value is made anew
at its end, and another graph has read what it was.  A gradient that is made anew before anybody
has read it is accumulated: its pause is live, but the kernel at its end needs no copy of it on the
device, since the sum may be taken at home.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from zcompile.ir import (
    KERNELS,
    PAGE_BYTES,
    Kernel,
    KernelSeconds,
    Role,
    Schedule,
    Update,
    Value,
    footprint,
    given,
    kernel_name,
    last_touch,
    operands,
    strip,
)
from zcompile.passes.clock import COMPUTE, UPDATE
from zcompile.passes.placement import managed_values
from zcompile.passes.simulate import seconds_of

SAVED_ROLES = frozenset({Role.ACTIVATION, Role.INTERMEDIATE})


@dataclass(frozen=True, slots=True)
class CycleKernel:
    """One kernel: ``run`` is the number of its graph in the iteration, ``seconds`` alone.

    It holds ``own_bytes`` of unmanaged values and transients, and ``operand_bytes`` of
    managed values that it finds on the device.  ``activity`` is what it does, as the
    simulator calls it.  Where it goes ``in_pieces``, its operands come and leave while it runs.
    """

    name: str
    run: int
    activity: str
    seconds: float
    own_bytes: int
    operand_bytes: int
    in_pieces: bool = False

    @property
    def held_bytes(self) -> int:
        """The device bytes without which the kernel cannot run."""
        return self.own_bytes + self.operand_bytes


class Use(NamedTuple):
    """A kernel that touches a value; it ``makes`` it if nothing of what it was is needed."""

    kernel: int
    writes: bool
    makes: bool


class Pause(NamedTuple):
    """A value untouched from after the kernel ``after`` to before the kernel ``until``.

    ``until`` is at most ``after`` where the pause runs over the end of the iteration.
    ``version`` numbers the writes of the value: pauses of one version see the same bytes, and
    the first of them is ``fresh``.  If the version is ``written``, a kernel of the cycle made
    it, so bytes that leave the device have to be copied out once.  If the pause is ``needed``,
    the kernel at its end needs them back.  ``crosses`` says that it reaches from one graph into
    another, or the next iteration; see Note [Live and dead pauses] for ``live``.
    """

    after: int
    until: int
    version: int
    fresh: bool
    written: bool
    needed: bool
    crosses: bool
    live: bool


@dataclass(frozen=True, slots=True)
class CycleValue:
    """A value that may leave the device, and its ``pauses`` in order of their beginning.

    ``maker`` is the number of the kernel that makes it, for a value that may be made again
    instead of moved, and ``None`` for every other.
    """

    name: str
    nbytes: int
    role: Role
    pauses: tuple[Pause, ...]
    maker: int | None = None


@dataclass(frozen=True, slots=True)
class Cycle:
    """An iteration; see the module for what always holds."""

    kernels: tuple[CycleKernel, ...]
    values: tuple[CycleValue, ...]

    @property
    def kernel_s(self) -> float:
        """The time of all kernels, which one thread runs one after another."""
        return sum(kernel.seconds for kernel in self.kernels)

    def covered(self, pause: Pause) -> tuple[range, ...]:
        """Return the kernels during which the value pauses, as one or two ranges."""
        if pause.after < pause.until:
            return (range(pause.after + 1, pause.until),)
        return range(pause.after + 1, len(self.kernels)), range(pause.until)


def cycle_of(
    graphs: Sequence[Schedule],
    kernel_seconds: KernelSeconds,
    *,
    activations: bool = False,
    window_bytes: int | None = None,
) -> Cycle:
    """Return the iteration that runs ``graphs`` in this order, again and again.

    For accumulation a forward and a backward are named several times.  The graphs may be
    planned or not: only their kernels count.  With ``activations`` what one graph makes and a
    later one reads under the same name may leave the device in between, or be made again;
    without, it stays, as part of what kernels hold of their own.  An update that may take
    ``window_bytes`` goes piece by piece, as small ones as need be: of each of its operands no
    more than a page has to be there at once.

    Raises ``ValueError`` if the time of a kernel is not known.
    """
    captured = {id(each): strip(each) for each in graphs}
    runs = [captured[id(each)] for each in graphs]
    moving = {each.name: each for each in managed_values(runs)}
    saved = _saved(runs) if activations else {}
    builder = _Builder({**moving, **saved}, kernel_seconds, window_bytes)
    for run in runs:
        builder.add(run)
    kernels = tuple(builder.kernels)
    values = (
        CycleValue(
            name,
            builder.values[name].nbytes,
            builder.values[name].role,
            _pauses(uses, kernels),
            _maker(uses) if name in saved else None,
        )
        for name, uses in builder.uses.items()
    )
    return Cycle(kernels, tuple(values))


def _saved(runs: Sequence[Schedule]) -> dict[str, Value]:
    """Return what a graph makes and hands to a later one, and nobody else keeps."""
    made: dict[str, int] = {}
    found: dict[str, Value] = {}
    for run in runs:
        there = given(run)
        for value in run.values:
            if value.held or value.role not in SAVED_ROLES:
                continue
            if value.name not in there:
                made[value.name] = value.nbytes
            elif made.get(value.name) == value.nbytes:
                found[value.name] = replace(value, role=Role.ACTIVATION)
    return found


class _Builder:
    """Kernels and uses, graph after graph; ``values`` are those that may leave the device."""

    def __init__(
        self,
        values: Mapping[str, Value],
        kernel_seconds: KernelSeconds,
        window_bytes: int | None,
    ) -> None:
        self.values = values
        self._window_bytes = window_bytes
        self.kernels: list[CycleKernel] = []
        self.uses: dict[str, list[Use]] = {}
        self._kernel_seconds = kernel_seconds
        self._own_bytes: dict[int, tuple[int, ...]] = {}
        self._runs = 0

    def add(self, graph: Schedule) -> None:
        if id(graph) not in self._own_bytes:
            self._own_bytes[id(graph)] = self._without_values(graph)
        there = set(given(graph))
        for step, own_bytes in zip(graph.steps, self._own_bytes[id(graph)], strict=True):
            assert isinstance(step, KERNELS), "what is captured has kernels only"
            operand_bytes = self._use(step, there)
            in_pieces = isinstance(step, Update) and self._window_bytes is not None
            if in_pieces and self._window_bytes is not None:
                least_bytes = PAGE_BYTES * len(operands(step))
                operand_bytes = min(operand_bytes, self._window_bytes, least_bytes)
            self.kernels.append(
                CycleKernel(
                    kernel_name(step),
                    self._runs,
                    UPDATE if isinstance(step, Update) else COMPUTE,
                    seconds_of(graph, step, self._kernel_seconds),
                    own_bytes,
                    operand_bytes,
                    in_pieces,
                )
            )
        self._runs += 1

    def _without_values(self, graph: Schedule) -> tuple[int, ...]:
        """Return what each kernel of ``graph`` holds apart from the values that may leave.

        Where a kernel makes more than its transients, and what was saved dies with it, the two
        are never there together: that much less counts.
        """
        alone = tuple(
            replace(each, nbytes=0) if each.name in self.values else each for each in graph.values
        )
        own = list(footprint(replace(graph, values=alone)).ordinary)
        own_bytes = {each.name: each.nbytes for each in alone}
        last = last_touch(graph)
        dying: dict[int, int] = {}
        for name, at in last.items():
            value = self.values.get(name)
            if value is not None and value.role is Role.SAVED and name not in graph.outputs:
                dying[at] = dying.get(at, 0) + value.nbytes
        for at, nbytes in dying.items():
            kernel = graph.steps[at]
            assert isinstance(kernel, KERNELS), "what is captured has kernels only"
            stays = {name for name in kernel.writes if last[name] > at or name in graph.outputs}
            made = sum(own_bytes[name] for name in stays) - kernel.transient_bytes
            own[at] -= max(0, min(nbytes, made))
        return tuple(own)

    def _use(self, kernel: Kernel, there: set[str]) -> int:
        """Note what the next ``kernel`` uses; return the bytes that must be on the device."""
        nbytes = 0
        writes = frozenset(kernel.writes)
        for name in operands(kernel):
            if name not in self.values:
                continue
            makes = name not in there
            there.add(name)
            self.uses.setdefault(name, []).append(Use(len(self.kernels), name in writes, makes))
            nbytes += 0 if makes else self.values[name].nbytes
        return nbytes


def _pauses(uses: Sequence[Use], kernels: Sequence[CycleKernel]) -> tuple[Pause, ...]:
    """Return the pauses of a value that is used so, beginning with the one after its first use."""
    first_write = next((at for at, use in enumerate(uses) if use.writes), None)
    if first_write is None:
        return tuple(
            Pause(
                after=use.kernel,
                until=after.kernel,
                version=0,
                fresh=False,
                written=False,
                needed=True,
                crosses=_crosses(use, after, kernels),
                live=True,
            )
            for use, after in _pairs(uses)
        )
    # Versions are numbered from the first write on, so that the pause over the end of the
    # iteration belongs to the last of them.
    turned = (*uses[first_write:], *uses[:first_write])
    read_by_others = False
    maker = -1
    version = -1
    found: list[Pause] = []
    for use, after in _pairs(turned):
        run = kernels[use.kernel].run
        if use.writes:
            version += 1
        if use.makes:
            maker, read_by_others = run, False
        elif run != maker:
            read_by_others = True
        live = not (after.makes and read_by_others)
        crosses = _crosses(use, after, kernels)
        needed = live and not after.makes
        pause = Pause(use.kernel, after.kernel, version, use.writes, True, needed, crosses, live)
        found.append(pause)
    back = len(uses) - first_write
    return (*found[back:], *found[:back])


def _pairs(uses: Sequence[Use]) -> Iterator[tuple[Use, Use]]:
    return zip(uses, (*uses[1:], uses[0]), strict=True)


def _crosses(use: Use, after: Use, kernels: Sequence[CycleKernel]) -> bool:
    over_the_end = after.kernel <= use.kernel
    return over_the_end or kernels[use.kernel].run != kernels[after.kernel].run


def _maker(uses: Sequence[Use]) -> int:
    return next(use.kernel for use in uses if use.makes)
