"""Cut a captured graph into segments: the kernels of its schedule.

Where the cuts are is a function of the graph alone, never of a plan or a budget: only then
do all plans run the same kernels and give the same bits.  A plan acts only at cuts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch import fx, nn

from zcompile.bridge.aliases import Aliases, Storage
from zcompile.bridge.sizes import symbol_placeholders, symbols_of

LARGE_FRACTION = 1024
"""What is large has at least 1/1024 of the bytes of all parameters, or gradients, of its graph.

Small ones (biases, norms) are read and made wherever they are without a cut of their own.
"""

WHOLE = frozenset({torch.ops.aten.embedding_dense_backward.default})
"""Operations that are a segment of their own and always run as ATen's kernel.

Inductor makes atomic additions of them, which several threads do in any order: no two runs
would have the same bits.
"""


@dataclass(frozen=True, slots=True)
class Totals:
    """The bytes of all parameters of a graph, of its gradients, and of what it saves.

    What is large among each of them is so by its share of these.
    """

    parameter_bytes: int
    gradient_bytes: int
    saved_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive operations that run as one kernel.

    ``inputs`` are the nodes that it takes from outside, the symbols in its sizes included,
    ``outputs`` those of its nodes that others use.
    """

    name: str
    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]

    @property
    def whole(self) -> bool:
        """Whether it is an operation that no compiler may take apart."""
        return self.nodes[-1].target in WHOLE


def cut(
    graph: fx.Graph,
    aliases: Aliases,
    managed: Collection[fx.Node],
    gradients: Collection[fx.Node] = (),
    leave_out: Collection[fx.Node] = (),
    brought: Collection[fx.Node] = (),
    totals: Totals | None = None,
) -> tuple[Segment, ...]:
    """Start a new segment before each operation that meets a large parameter or gradient anew.

    A matrix product that reads a weight and the one that makes the weight's gradient are so
    in different segments: between them the weight can go before the gradient comes.  Operations
    in `WHOLE` have segments of their own.

    Expects views of managed placeholders to be local (``views.localise_views``).  Nodes in
    ``leave_out`` belong to no segment.  Views of ``brought``, other placeholders that come
    from somewhere, belong to the segment that reads them as well, but start none.  ``totals``
    are by default those of the graph.
    """
    own, made = _storages(aliases, managed), _storages(aliases, gradients)
    seen = own | _storages(aliases, brought)
    totals = totals or totals_of(aliases, managed, gradients)
    large = _large(own, totals.parameter_bytes) | _large(made, totals.gradient_bytes)
    parts: list[list[fx.Node]] = [[]]
    in_hand: set[Storage] = set()
    chain: list[fx.Node] = []
    for node in _operations(graph):
        if node in leave_out:
            continue
        chain.append(node)
        if aliases.is_view_of(node, seen):
            continue
        meets = {each for one in chain for each in _touched(aliases, one)} & large
        if parts[-1] and (meets - in_hand or WHOLE & {node.target, parts[-1][-1].target}):
            parts.append([])
            in_hand = set()
        in_hand |= meets
        parts[-1] += chain
        chain = []
    symbols = symbol_placeholders(graph)
    return tuple(_segment(f"seg_{i}", part, symbols) for i, part in enumerate(parts) if part)


def _touched(aliases: Aliases, node: fx.Node) -> tuple[Storage, ...]:
    return (*aliases.read_by(node), *aliases.of(node))


def epilogue(
    graph: fx.Graph, aliases: Aliases, managed: Collection[fx.Node]
) -> tuple[fx.Node, ...]:
    """Return the views of parameters that only the output reads: they belong to no kernel."""
    own = {each for node in managed for each in aliases.of(node)}
    rest: list[fx.Node] = []
    for node in reversed(_operations(graph)):
        if not aliases.is_view_of(node, own):
            break
        rest.append(node)
    return tuple(reversed(rest))


def _operations(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op not in {"placeholder", "output"}]


def totals_of(
    aliases: Aliases, managed: Collection[fx.Node], gradients: Collection[fx.Node]
) -> Totals:
    """Return what `cut` takes for the totals of a graph where it is told no others."""
    own, made = _storages(aliases, managed), _storages(aliases, gradients)
    return Totals(_known_bytes(own), _known_bytes(made))


def _storages(aliases: Aliases, nodes: Collection[fx.Node]) -> set[Storage]:
    return {each for node in nodes for each in aliases.of(node)}


def _known_bytes(storages: Collection[Storage]) -> int:
    """Sizes of parameters and their gradients are plain numbers; other storages are left out."""
    return sum(each.nbytes for each in storages if isinstance(each.nbytes, int))


def _large(storages: Collection[Storage], total_bytes: int) -> set[Storage]:
    sizes = {each: each.nbytes for each in storages if isinstance(each.nbytes, int)}
    return {each for each, size in sizes.items() if size * LARGE_FRACTION >= total_bytes}


def _segment(
    name: str, nodes: Sequence[fx.Node], symbols: Mapping[sympy.Symbol, fx.Node]
) -> Segment:
    inside = set(nodes)
    sources = [each for node in nodes for each in node.all_input_nodes if each not in inside]
    # A kernel whose sizes are products of symbols is told each of them.
    sizes = {symbol for node in (*sources, *nodes) for symbol in symbols_of(node)}
    sources += [node for symbol, node in symbols.items() if symbol in sizes]
    outputs = tuple(node for node in nodes if not inside.issuperset(node.users))
    return Segment(name, tuple(nodes), tuple(dict.fromkeys(sources)), outputs)


def extract(segment: Segment, attributes: nn.Module) -> fx.GraphModule:
    """Return ``segment`` as a module of its own, from its inputs to the tuple of its outputs.

    Its nodes are named by their place in it, so that equal segments of other graphs, other
    processes included, have the same code: Inductor's caches on disk go by that.
    """
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for at, node in enumerate(segment.inputs):
        env[node] = graph.placeholder(f"arg{at}")
        env[node].meta = dict(node.meta)
    for at, node in enumerate(segment.nodes):
        args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
        made = graph.create_node(node.op, node.target, args, kwargs, name=f"op{at}")
        made.meta = dict(node.meta)
        env[node] = made
    graph.output(tuple(env[node] for node in segment.outputs))
    return fx.GraphModule(attributes, graph)
