"""The schedules of a model's iteration, from all its layers or from a few that stand for all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from zcompile.bridge.capture import Captured, least_saved_bytes
from zcompile.bridge.costs import SizeOf
from zcompile.bridge.segments import Totals
from zcompile.bridge.sizes import hint
from zcompile.forecasting.layers import SHORT_BLOCKS, Layers, repeating, shorten
from zcompile.forecasting.tracing import Arguments, Trace, trace
from zcompile.forecasting.unroll import Costed, NotRepeated, agrees, first_saved, unroll
from zcompile.ir import Role, Schedule, given

Lengths = tuple[int, ...]
"""For each list of layers the blocks that are traced of it."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be captured.

    ``eager`` is as for ``lower``.  ``symbolic`` are axes of the arguments whose length stays
    open: see ``trace``.
    """

    model: nn.Module
    arguments: Arguments
    eager: bool
    symbolic: tuple[tuple[int, int], ...] = ()


def source_of(request: Request, *, whole: bool = False) -> Source:
    """Return what gives the schedules, with as few layers traced as tell of all.

    ``whole`` has all layers traced.  They are too where the traced ones do not foretell
    one more: see Note [Blocks are copied between others].
    """
    lists = () if whole else repeating(request.model)
    why = ""
    if lists:
        try:
            found = Source(request, lists)
            found.graphs()
        except NotRepeated as error:
            why = f": {error}"
        else:
            return found
    return Source(request, (), why)


class Source:
    """The captured graphs of one model, and its schedules for any shapes they hold for."""

    def __init__(self, request: Request, lists: Sequence[Layers], why: str = "") -> None:
        self._lists = tuple(lists)
        self._why = why
        self._all_saved = bool(request.symbolic)
        traces = {each: _trace(request, lists, each) for each in (self._short, *self._longer)}
        firsts = {each: _captured(t, request, {}) for each, t in traces.items()}
        if not lists:
            self._captured = firsts
            return
        totals = self._whole_totals(firsts)
        self._captured = {e: _captured(t, request, totals) for e, t in traces.items()}

    @property
    def how(self) -> str:
        """In words, how many layers were traced."""
        if not self._lists:
            return f"all layers were traced{self._why}"
        parts = (
            f"{each.length_with(SHORT_BLOCKS)} and {each.length_with(SHORT_BLOCKS + 1)} of "
            f"{each.length} {each.path or 'layers'}"
            for each in self._lists
        )
        return f"traced {', '.join(parts)}, which stand for all"

    @property
    def captured(self) -> tuple[Captured, ...]:
        """All graphs that were captured, those with the fewest layers first."""
        return tuple(each for graphs in self._captured.values() for each in graphs)

    def graphs(self, size_of: SizeOf = hint) -> tuple[Costed, ...]:
        """Return the schedules with all layers, for the shapes that ``size_of`` knows.

        Raises ``NotRepeated`` if the layers that were traced do not foretell one more.
        """
        base = self._costed(self._short, size_of)
        found = base
        for each, lengths in zip(self._lists, self._longer, strict=True):
            longer = self._costed(lengths, size_of)
            grows = [not agrees(a, b) for a, b in zip(base, longer, strict=True)]
            shifts = [first_saved(b) - first_saved(a) for a, b in zip(base, longer, strict=True)]
            blocks = _Blocks(each, grows, shifts)
            if not all(map(agrees, blocks.unrolled(base, 1), longer)):
                raise NotRepeated(f"{each.path or 'its layers'} are not alike")
            found = blocks.unrolled(found, each.num_blocks - SHORT_BLOCKS)
        return _without_small(found) if self._all_saved else found

    @property
    def _short(self) -> Lengths:
        return (SHORT_BLOCKS,) * len(self._lists)

    @property
    def _longer(self) -> tuple[Lengths, ...]:
        """By list, the lengths with one block more of it."""
        numbers = range(len(self._lists))
        return tuple(tuple(SHORT_BLOCKS + (at == one) for at in numbers) for one in numbers)

    def _whole_totals(self, firsts: Mapping[Lengths, Sequence[Captured]]) -> dict[str, Totals]:
        """Return the totals that the graphs have with all layers: each block adds as much."""
        of = {e: {one.name: one.totals for one in graphs} for e, graphs in firsts.items()}
        base = of[self._short]
        if any(each.keys() != base.keys() for each in of.values()):
            raise NotRepeated("each layer has graphs of its own")
        found: dict[str, Totals] = {}
        for name, short in base.items():
            parameters, gradients, saved = _fields(short)
            for each, lengths in zip(self._lists, self._longer, strict=True):
                more = of[lengths][name]
                further = each.num_blocks - SHORT_BLOCKS
                parameters += further * (more.parameter_bytes - short.parameter_bytes)
                gradients += further * (more.gradient_bytes - short.gradient_bytes)
                saved += further * (more.saved_bytes - short.saved_bytes)
            found[name] = Totals(parameters, gradients, saved)
        return found

    def _costed(self, lengths: Lengths, size_of: SizeOf) -> tuple[Costed, ...]:
        return tuple(Costed(each.schedule(size_of), each.costs) for each in self._captured[lengths])


def _trace(request: Request, lists: Sequence[Layers], lengths: Lengths) -> Trace:
    num_blocks = {one.path: n for one, n in zip(lists, lengths, strict=True)}
    return trace(
        request.model,
        request.arguments,
        eager=request.eager,
        shortened=shorten(request.model, lists, num_blocks),
        symbolic=request.symbolic,
    )


def _captured(trace: Trace, request: Request, totals: Mapping[str, Totals]) -> tuple[Captured, ...]:
    found: list[Captured] = []
    saved: frozenset[str] = frozenset()
    for each in trace.graphs:  # forwards come before their backwards
        made = each.capture(
            inline=request.eager,
            saved=saved,
            totals=totals.get(each.name),
            all_saved=bool(request.symbolic),  # which of it is small depends on the lengths
        )
        saved |= made.saved.keys()
        found.append(made)
    return tuple(found)


def _without_small(graphs: Sequence[Costed]) -> tuple[Costed, ...]:
    """Return ``graphs`` in which what is too small to leave stays, of all that was saved."""
    saved = {e.name: e.nbytes for g in graphs for e in g.schedule.values if e.role is Role.SAVED}
    totals: dict[str, int] = {}
    for name, nbytes in saved.items():
        of = name.rpartition(".")[0]
        totals[of] = totals.get(of, 0) + nbytes
    small = {
        name
        for name, nbytes in saved.items()
        if nbytes < least_saved_bytes(totals[name.rpartition(".")[0]])
    }
    return tuple(Costed(_staying(each.schedule, small), each.costs) for each in graphs)


def _staying(schedule: Schedule, small: Collection[str]) -> Schedule:
    given_here = given(schedule)
    values = (
        replace(e, role=Role.ACTIVATION if e.name in given_here else Role.INTERMEDIATE)
        if e.name in small
        else e
        for e in schedule.values
    )
    return replace(schedule, values=tuple(values))


def _fields(totals: Totals) -> tuple[int, int, int]:
    return totals.parameter_bytes, totals.gradient_bytes, totals.saved_bytes


@dataclass(frozen=True, slots=True)
class _Blocks:
    """How graphs grow with one list of layers: whether at all, and how saved numbers shift."""

    layers: Layers
    grows: Sequence[bool]
    shifts: Sequence[int]

    def unrolled(self, graphs: Sequence[Costed], num_copies: int) -> tuple[Costed, ...]:
        return tuple(
            unroll(each, self.layers, num_copies, shift) if growing else each
            for each, growing, shift in zip(graphs, self.grows, self.shifts, strict=True)
        )
