"""FX graph in, schedule out: the only reader of captured graphs.

Each storage becomes one value and each segment one ``Compute`` step; views are reads of
their storage.  Nothing about tensors survives in the schedule except names and sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import fx, nn

from zcompile.bridge.advance import advance
from zcompile.bridge.again import Repeats, repeating
from zcompile.bridge.aliases import Aliases, Size, Storage, tensors_of
from zcompile.bridge.costs import SizeOf, segment_cost
from zcompile.bridge.relayout import lay_out
from zcompile.bridge.sameness import NodeAsRead, as_read, is_copy, is_unchanged
from zcompile.bridge.segments import LARGE_FRACTION, Segment, Totals, cut, epilogue, totals_of
from zcompile.bridge.sizes import are_equal, hint, is_known
from zcompile.bridge.transients import held_bytes, transient_bytes
from zcompile.bridge.views import hoist_sizes, hoist_views, is_plain_view, localise_views
from zcompile.ir import PAGE_BYTES, Compute, Cost, Role, Schedule, Value
from zcompile.runtime.binding import Layout

LEAST_SAVED_BYTES = 4 * PAGE_BYTES
"""What is saved for backward and smaller than this stays on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What the placeholders and outputs of a graph are to the user's model.

    ``managed`` names the placeholders that are parameters, ``placeholders`` gives every
    placeholder's role, ``held`` are those that somebody outside keeps alive,
    ``gradients`` maps an output's position to the parameter whose gradient it is, and
    ``layouts`` says how the gradient of each parameter lies.

    ``saved`` names the placeholders of a backward graph that forward may have moved away,
    ``leaving`` the outputs of a forward graph that are saved for backward, by position.
    ``changed`` are the placeholders that AOTAutograd changes after the graph has run; it may be
    others too if ``changes_unknown``.
    """

    managed: Mapping[fx.Node, str]
    placeholders: Mapping[fx.Node, Role]
    held: frozenset[fx.Node]
    gradients: Mapping[int, str]
    layouts: Mapping[str, Layout]
    saved: Mapping[fx.Node, str] = field(default_factory=dict[fx.Node, str])
    leaving: Mapping[int, str] = field(default_factory=dict[int, str])
    changed: frozenset[fx.Node] = frozenset()
    changes_unknown: bool = False

    @property
    def movable(self) -> Mapping[fx.Node, str]:
        """The placeholders whose bytes may be away from the device."""
        return {**self.managed, **self.saved}


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A graph ready for planning and emission; it is not changed any more.

    ``attributes`` has the constants that the graph refers to by name.
    ``names`` calls every storage by the name of its value.  ``gradients`` gives for each
    gradient value the node that leaves the graph; a storage that is one gradient and
    nothing else *is* that value, any other gradient is a value beside its storage.  ``saved``
    gives in the same way what is saved for backward and may leave the device until then.
    ``costs`` says what each segment costs for the shapes of the first call.  ``totals`` are
    the bytes of parameters and gradients that are in the graph.  ``repeats`` says which segments
    of a forward graph backward may run again.  ``read`` are the nodes with
    their arguments as they were when all that was found.
    """

    name: str
    graph: fx.Graph
    attributes: nn.Module
    roles: Roles
    segments: tuple[Segment, ...]
    epilogue: tuple[fx.Node, ...]
    inline: bool
    aliases: Aliases
    names: Mapping[Storage, str]
    gradients: Mapping[str, fx.Node]
    saved: Mapping[str, fx.Node]
    costs: Mapping[str, Cost]
    totals: Totals
    repeats: Repeats
    read: Sequence[NodeAsRead]

    def is_still(self, module: fx.GraphModule) -> bool:
        """Whether ``module`` is what was captured, or a copy of it; and nobody has changed it.

        Then it need not be captured again.
        """
        if module is self.attributes:
            return is_unchanged(self.read, module.graph)
        return is_copy(self.read, module.graph)

    def schedule(self, size_of: SizeOf) -> Schedule:
        """Return the schedule with nothing moved, for the shapes that ``size_of`` knows."""
        values: dict[str, Value] = {}
        for node, role in self.roles.placeholders.items():
            for storage in self.aliases.of(node):
                name = self.names[storage]
                held = node in self.roles.held
                values.setdefault(name, Value(name, size_of(storage.nbytes), role, held=held))
        last_reader = _last_readers(self.graph, self.aliases)
        steps: list[Compute] = []
        for segment in self.segments:
            reads, writes = self._reads(segment), self._writes(segment, last_reader)
            for name, size in writes.items():
                values[name] = Value(name, size_of(size), self._role(name))
            transient = transient_bytes(
                segment, self.aliases, last_reader, size_of, frees_reads=self.inline
            )
            repeats = segment.name in self.repeats.segments
            steps.append(Compute(segment.name, reads, tuple(writes), transient, repeats))
        return Schedule(self.name, tuple(values.values()), tuple(steps), self._outputs())

    def _role(self, made: str) -> Role:
        if made in self.gradients:
            return Role.GRADIENT
        return Role.SAVED if made in self.saved else Role.INTERMEDIATE

    def costs_for(self, size_of: SizeOf) -> dict[str, Cost]:
        """Return what each segment costs, for the shapes that ``size_of`` knows."""
        return {
            each.name: segment_cost(each, self.aliases, fused=not self.inline, size_of=size_of)
            for each in self.segments
        }

    def held_bytes(self, size_of: SizeOf) -> dict[str, tuple[int, ...]]:
        """Return what each segment holds at each of its operations beyond what was live before."""
        last = _last_readers(self.graph, self.aliases)
        return {
            each.name: held_bytes(each, self.aliases, last, size_of, frees_reads=self.inline)
            for each in self.segments
        }

    def forget_tracing(self) -> None:
        """Drop what tracing wrote to the nodes: fake tensors and stack traces weigh megabytes.

        Names, sizes and aliases have been read off them; nothing looks at them again once
        the segments are compiled.
        """
        for node in self.graph.nodes:
            node.meta.clear()

    @property
    def output_nodes(self) -> tuple[object, ...]:
        (output,) = (node for node in self.graph.nodes if node.op == "output")
        return tuple(output.args[0])

    def _reads(self, segment: Segment) -> tuple[str, ...]:
        inside = set(segment.nodes)
        found = (
            self.names[storage]
            for node in segment.nodes
            for storage in self.aliases.read_by(node)
            if storage.root not in inside
        )
        return tuple(dict.fromkeys(found))

    def _writes(self, segment: Segment, last: Mapping[Storage, fx.Node]) -> dict[str, Size]:
        """Return the values that ``segment`` makes and that outlive it, with their sizes."""
        inside = set(segment.nodes)
        found: dict[str, Size] = {}
        for node in segment.nodes:
            for storage in self.aliases.of(node):
                if storage.root is node and storage in last and last[storage] not in inside:
                    found[self.names[storage]] = storage.nbytes
        for name, node in self.gradients.items():
            if node in inside and name not in found:
                found[name] = self.aliases.of(node)[0].nbytes
        return found

    def _outputs(self) -> tuple[str, ...]:
        found: dict[str, None] = dict.fromkeys(self.gradients)
        for node in self.output_nodes:
            if isinstance(node, fx.Node):
                found.update(dict.fromkeys(self.names[each] for each in self.aliases.of(node)))
        managed = set(self.roles.managed.values())
        return tuple(name for name in found if name not in managed)


def gradient_name(parameter: str) -> str:
    """Return the name of the value that is the gradient of ``parameter``."""
    return f"{parameter}:grad"


def capture(
    name: str,
    graph: fx.Graph,
    attributes: nn.Module,
    roles: Roles,
    *,
    inline: bool,
    totals: Totals | None = None,
    all_saved: bool = False,
) -> Captured:
    """Prepare ``graph`` (changed in place), cut it and name its storages.

    ``inline`` says that segments will run node by node, so that what they read last is
    freed in their middle; a compiled segment keeps it to its end.  ``totals`` are those that
    decide what is large, where ``graph`` is a part of the one that will run.  ``all_saved`` lets
    what is saved for backward move away however small it is: see `least_saved_bytes`.
    """
    localise_views(graph, roles.movable)
    hoist_sizes(graph)
    aliases = Aliases(graph)
    if not roles.gradients:  # they have places of their own, right behind what makes them
        advance(graph, aliases, roles.movable)
    (output,) = (node for node in graph.nodes if node.op == "output")
    leaving = _leaving(output, roles)
    hoist_views(aliases, list(leaving.values()))
    if lay_out(graph, leaving, {at: roles.layouts[roles.gradients[at]] for at in leaving}):
        aliases, leaving = Aliases(graph), _leaving(output, roles)
    nodes = _saved(aliases, roles, output)
    sizes = {name: hint(aliases.of(node)[0].nbytes) for name, node in nodes.items()}
    saved_bytes = sum(sizes.values())
    least = least_saved_bytes(totals.saved_bytes if totals else saved_bytes)
    saved = {name: node for name, node in nodes.items() if all_saved or sizes[name] >= least}
    hoist_views(aliases, saved.values())
    last = epilogue(graph, aliases, roles.movable)
    names = _names(graph, aliases, roles)
    gradients: dict[str, fx.Node] = {}
    for at, node in leaving.items():
        if _has_memory(node) and node not in last:
            gradients[gradient_name(roles.gradients[at])] = node
    names |= _whole(aliases, gradients, output)
    names |= {aliases.of(node)[0]: name for name, node in saved.items()}
    made = gradients.values()
    segments = cut(
        graph,
        aliases,
        roles.managed,
        made,
        leave_out=frozenset(last),
        brought=roles.saved,
        totals=totals,
    )
    return Captured(
        name=name,
        graph=graph,
        attributes=attributes,
        roles=roles,
        segments=segments,
        epilogue=last,
        inline=inline,
        aliases=aliases,
        names=names,
        gradients=gradients,
        saved=saved,
        costs={each.name: segment_cost(each, aliases, fused=not inline) for each in segments},
        totals=replace(totals_of(aliases, roles.managed, made), saved_bytes=saved_bytes),
        repeats=_repeats(graph, aliases, segments, roles, output),
        read=as_read(graph),
    )


def _repeats(
    graph: fx.Graph,
    aliases: Aliases,
    segments: Sequence[Segment],
    roles: Roles,
    output: fx.Node,
) -> Repeats:
    """Return what may run again, if ``graph`` is a forward one, nobody's backward."""
    if not roles.leaving or roles.changes_unknown:
        return Repeats()
    handed = cast("Sequence[object]", output.args[0])
    saved = [node for at in roles.leaving if isinstance(node := handed[at], fx.Node)]
    return repeating(graph, aliases, segments, saved, roles.changed)


def _leaving(output: fx.Node, roles: Roles) -> dict[int, fx.Node]:
    """Return the nodes that are gradients, by their positions among the outputs."""
    values: Any = output.args[0]
    found = {at: values[at] for at in roles.gradients}
    return {at: node for at, node in found.items() if isinstance(node, fx.Node)}


def _has_memory(gradient: fx.Node) -> bool:
    """Whether a gradient is made here and can lie at a home; a sparse one passes through."""
    dense = all(each.layout is torch.strided for each in tensors_of(gradient))
    return gradient.op != "placeholder" and dense


def _last_readers(graph: fx.Graph, aliases: Aliases) -> dict[Storage, fx.Node]:
    return {storage: node for node in graph.nodes for storage in aliases.read_by(node)}


def _names(graph: fx.Graph, aliases: Aliases, roles: Roles) -> dict[Storage, str]:
    """Call each storage by its parameter or by the first node that is it and nothing else."""
    names: dict[Storage, str] = {}
    movable = roles.movable
    for node in graph.nodes:
        storages = aliases.of(node)
        if len(storages) == 1:
            names.setdefault(storages[0], movable.get(node, node.name))
    for node in graph.nodes:
        for at, storage in enumerate(aliases.of(node)):
            names.setdefault(storage, f"{node.name}.{at}")
    return names


def _whole(aliases: Aliases, leaving: Mapping[str, fx.Node], output: fx.Node) -> dict[Storage, str]:
    """Return the storages that are one of ``leaving``, all of it, and no other output."""
    users: dict[Storage, int] = {}
    for node in output.args[0]:  # type: ignore[union-attr]
        for storage in aliases.of(node) if isinstance(node, fx.Node) else ():
            users[storage] = users.get(storage, 0) + 1
    found: dict[Storage, str] = {}
    for name, node in leaving.items():
        (storage,) = aliases.of(node)
        (tensor,) = tensors_of(node)
        whole = are_equal(tensor.numel() * tensor.element_size(), storage.nbytes)
        if users[storage] == 1 and whole and storage.root.op != "placeholder":
            found[storage] = name
    return found


def least_saved_bytes(total_bytes: int) -> float:
    """Return the size below which something stays that forward saves, of so many bytes together.

    A copy of a small one takes whole pages of the arena, so little would be won.
    """
    return max(LEAST_SAVED_BYTES, total_bytes / LARGE_FRACTION)


def _saved(aliases: Aliases, roles: Roles, output: fx.Node) -> dict[str, fx.Node]:
    """Return what forward saves for backward and could move away: dense memory made here."""
    leaving = cast("Sequence[object]", output.args[0])
    nodes = {name: leaving[at] for at, name in roles.leaving.items()}
    dense = {
        name: node
        for name, node in nodes.items()
        if isinstance(node, fx.Node)
        and len(aliases.of(node)) == 1
        and _has_memory(node)
        and is_known(aliases.of(node)[0].nbytes)
        and is_plain_view(node, aliases.of(node)[0].root)
    }
    return {name: dense[name] for name in _whole(aliases, dense, output).values()}
