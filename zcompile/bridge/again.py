"""Which segments of forward may run again in backward, and how they are written there.

Note [What repeats].  A segment gives the same bits whenever it runs on the same tensors if none of
its operations draws random numbers or changes anything, and if nothing that it reads is ever
changed by the graph or, for the graph, by AOTAutograd.  Random segments are left out: to draw the
same numbers, backward would have to set the process's generator back, under the feet of
whatever else draws.

Note [Views are made again].  A segment is given nodes, and backward is given storages.  Where a
node is another view of what forward has saved, it is made of that by its sizes and strides; where
it is a view of anything else, the operations between the two, all of them views, are written
once more before the segment.  A segment that would need more than that does not repeat.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch import Tensor, fx, nn

from zcompile.bridge.aliases import Aliases, Size, Storage, tensors_of
from zcompile.bridge.segments import Segment
from zcompile.bridge.sizes import evaluate, symbol_placeholders, symbols_of
from zcompile.bridge.torch_private import is_random, leaves_operands
from zcompile.runtime import ops

_DROPS_AT: dict[Any, int] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: 3,
}
"""Operations that draw only if an argument at some place, the share to be dropped, is not zero."""

ATTRIBUTES = "forward_"
"""Begins the names of forward's constants in the graph of backward."""


@dataclass(frozen=True, slots=True)
class View:
    """A node as a view of another over the same storage; ``shift`` is how much later it begins.

    ``symbols`` gives the placeholder of each symbol in its sizes, which are in elements.
    """

    of: fx.Node
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    shift: Size
    symbols: Mapping[sympy.Symbol, fx.Node]


@dataclass(frozen=True, slots=True)
class Repeats:
    """The segments of a forward graph that may run again, by name, and views they need for it."""

    segments: frozenset[str] = frozenset()
    views: Mapping[fx.Node, View] = field(default_factory=dict[fx.Node, View])


def repeating(
    graph: fx.Graph,
    aliases: Aliases,
    segments: Sequence[Segment],
    saved: Iterable[fx.Node],
    changed_outside: Iterable[fx.Node],
) -> Repeats:
    """Return what of the ``segments`` of a forward graph repeats.

    ``saved`` are the nodes that it hands to backward, ``changed_outside`` the placeholders whose
    tensors AOTAutograd changes after the graph.  See Note [What repeats].
    """
    changed = {storage for node in changed_outside for storage in aliases.of(node)}
    changed |= _changed(graph, aliases)
    sources = _Sources(graph, aliases, segments, saved)
    found = frozenset(
        segment.name
        for segment in segments
        if all(map(_is_pure, segment.nodes))
        and not any(each in changed for node in segment.nodes for each in aliases.read_by(node))
        and all(map(sources.reach, segment.inputs))
    )
    return Repeats(found, sources.views)


def _changed(graph: fx.Graph, aliases: Aliases) -> set[Storage]:
    """Return what an operation of ``graph`` may change in place."""
    calls = (node for node in graph.nodes if node.op.startswith("call_"))
    return {
        storage
        for node in calls
        if not leaves_operands(node.target)
        for storage in aliases.read_by(node)
    }


def _is_pure(node: fx.Node) -> bool:
    if node.op == "get_attr":
        return isinstance(node.meta.get("val"), Tensor)
    if node.op != "call_function" or _draws(node):
        return False
    # What has no tensors computes with sizes: Python's own operators and sympy's.
    return leaves_operands(node.target) or not _has_tensors(node)


def _draws(node: fx.Node) -> bool:
    """Whether an operation draws random numbers.

    Attention carries the tag of those that do, and draws only if it drops something.
    """
    at = _DROPS_AT.get(node.target)
    if at is None:
        return is_random(node.target)
    share = node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return not (isinstance(share, float | int) and share == 0)


def _has_tensors(node: fx.Node) -> bool:
    return any(True for each in (node, *node.all_input_nodes) for _ in tensors_of(each))


class _Sources:
    """The nodes that backward can have without running a segment that made them."""

    def __init__(
        self,
        graph: fx.Graph,
        aliases: Aliases,
        segments: Sequence[Segment],
        saved: Iterable[fx.Node],
    ) -> None:
        self._aliases = aliases
        self._saved = dict.fromkeys(saved)
        placeholders = graph.find_nodes(op="placeholder")
        self._known = {s for node in (*self._saved, *placeholders) for s in aliases.of(node)}
        self._whole = {aliases.of(n)[0]: n for n in self._saved if len(aliases.of(n)) == 1}
        self._symbols = symbol_placeholders(graph)
        self.views: dict[fx.Node, View] = {}
        self._segment_of = {node: each.name for each in segments for node in each.nodes}
        self._reached: dict[fx.Node, bool] = {}

    def reach(self, node: fx.Node) -> bool:
        """Whether ``node`` is at hand, or a view of what is: see Note [Views are made again]."""
        if node not in self._reached:
            self._reached[node] = (
                self._is_at_hand(node)
                or self._is_view_of_saved(node)
                or (is_free(node, self._aliases) and all(map(self.reach, node.all_input_nodes)))
            )
        return self._reached[node]

    def _is_view_of_saved(self, node: fx.Node) -> bool:
        storages, tensors = self._aliases.of(node), [*tensors_of(node)]
        base = self._whole.get(storages[0]) if len(storages) == len(tensors) == 1 else None
        if base is None:
            return False
        (ours,), (theirs,) = tensors, tensors_of(base)
        if ours.dtype != theirs.dtype or ours.is_conj() or ours.is_neg():
            return False
        symbols = symbols_of(node) | symbols_of(base)
        if not symbols <= self._symbols.keys():
            return False
        self.views[node] = View(
            base,
            tuple(ours.shape),
            tuple(ours.stride()),
            ours.storage_offset() - theirs.storage_offset(),
            {symbol: self._symbols[symbol] for symbol in symbols},
        )
        return True

    def _is_at_hand(self, node: fx.Node) -> bool:
        storages = self._aliases.of(node)
        if node.op == "placeholder":  # of several over one storage the first is the value
            return all(each.root is node for each in storages)
        if node in self._saved:
            return True
        return bool(storages) and all(
            each not in self._known and self._is_made_with(node, each) for each in storages
        )

    def _is_made_with(self, node: fx.Node, storage: Storage) -> bool:
        """Whether the segment that makes ``storage`` hands out ``node`` as well."""
        own = self._segment_of.get(node)
        return own is not None and own == self._segment_of.get(storage.root)


def is_free(node: fx.Node, aliases: Aliases) -> bool:
    """Whether ``node`` is a view of what it reads, or computes with sizes alone."""
    if node.op != "call_function":
        return False
    if not _has_tensors(node):
        return True
    read, own = aliases.read_by(node), aliases.of(node)
    if not own:  # a size, read off a tensor
        return leaves_operands(node.target) and not any(True for _ in tensors_of(node))
    return leaves_operands(node.target) and all(each in read for each in own)


Lookup = Callable[[fx.Node], fx.Node]


class Rewriter:
    """Writes nodes of a forward graph into the graph of its backward.

    ``at_hand`` gives what stands there for a placeholder of forward or a node that it saves.
    """

    def __init__(
        self,
        graph: fx.Graph,
        attributes: nn.Module,
        views: Mapping[fx.Node, View],
        at_hand: Callable[[fx.Node], fx.Node | None],
    ) -> None:
        self._graph = graph
        self._module = attributes
        self._views = views
        self._at_hand = at_hand
        self._made: dict[fx.Node, fx.Node] = {}
        self._written: list[fx.Node] = []
        self.attributes: dict[str, Any] = {}
        """By name, the constants of forward that what was written refers to."""

    def run(self, segment: Segment, compiled: nn.Module | None) -> None:
        """Write ``segment`` anew, as one call if it is ``compiled``, otherwise node by node."""
        if compiled is None:
            own: dict[fx.Node, fx.Node] = {}
            for node in segment.nodes:
                own[node] = self._copy(node, lambda each: own.get(each) or self.node(each))
            self._made |= own
            return
        name = f"{ATTRIBUTES}{segment.name}"
        self.attributes[name] = compiled
        given = tuple(map(self.node, segment.inputs))
        result = self._keep(self._graph.call_module(name, given))
        for at, node in enumerate(segment.outputs):
            part = self._graph.call_function(operator.getitem, (result, at))
            self._made[node] = self._keep(part)

    def node(self, node: fx.Node) -> fx.Node:
        """Return what stands for ``node`` of forward: made again, at hand, or a view of that."""
        found = self._made.get(node) or self._at_hand(node)
        if found is not None:
            return found
        view = self._views.get(node)
        return self._copy(node, self.node) if view is None else self._view(view)

    def _view(self, view: View) -> fx.Node:
        base = self.node(view.of)
        if not view.symbols:
            sizes = (view.shape, view.stride, view.shift)
            return self._keep(self._graph.call_function(ops.restride, (base, *sizes)))
        name = f"{ATTRIBUTES}view_{len(self.attributes)}"
        self.attributes[name] = Restride(view)
        numbers = tuple(map(self.node, view.symbols.values()))
        return self._keep(self._graph.call_module(name, (base, *numbers)))

    def drop_unused(self) -> None:
        """Take out what was written and nobody needs."""
        for node in reversed(self._written):
            if not node.users:
                self._graph.erase_node(node)

    def _copy(self, node: fx.Node, lookup: Lookup) -> fx.Node:
        copy = self._keep(self._graph.node_copy(node, lookup))
        if node.op == "get_attr":
            target = str(node.target)
            copy.target = f"{ATTRIBUTES}{target.replace('.', '_')}"
            self.attributes[copy.target] = operator.attrgetter(target)(self._module)
        return copy

    def _keep(self, node: fx.Node) -> fx.Node:
        self._written.append(node)
        return node


class Restride(nn.Module):
    """Makes a view whose sizes depend on the shapes of the call."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view

    def forward(self, base: Tensor, *numbers: int) -> Tensor:
        """Return the view of ``base``; ``numbers`` are the values of the symbols, in order."""
        view = self._view
        known = dict(zip(view.symbols, map(int, numbers), strict=True))
        shape = [evaluate(size, known) for size in view.shape]
        stride = [evaluate(size, known) for size in view.stride]
        return ops.restride(base, shape, stride, evaluate(view.shift, known))
