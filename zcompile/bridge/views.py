"""Make every use of a parameter's view a use of the parameter itself.

The copy of a parameter that a segment reads lies in the arena and is gone after the
segment.  A view taken in one segment must therefore not be read in another: each reader
gets a chain of view operations of its own, right before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import fx

from zcompile.bridge.aliases import Aliases

SIZES = (int, torch.SymInt)
"""What stands for a size."""


def localise_views(graph: fx.Graph, managed: Collection[fx.Node]) -> None:
    """Copy the chain from a managed placeholder to each of its readers, in place.

    Afterwards every view of a managed placeholder has one reader and stands before it
    with nothing but other such views between.
    """
    aliases = Aliases(graph)
    own = {storage for node in managed for storage in aliases.of(node)}
    views = {node: None for node in graph.nodes if aliases.is_view_of(node, own)}
    for reader in [node for node in graph.nodes if node not in views]:
        chain: dict[fx.Node, fx.Node] = {}
        for source in reader.all_input_nodes:
            if source in views:
                copy = _copy_chain(graph, source, reader, views, chain)
                reader.replace_input_with(source, copy)
    for node in reversed(views):
        graph.erase_node(node)


def hoist_views(aliases: Aliases, outputs: Iterable[fx.Node]) -> None:
    """Move each output that is a view of something computed to right behind what it views.

    A gradient often leaves the graph as a transpose of a matrix product; it can be written
    home as soon as the product is there only if the transpose is there as well.  ``aliases``
    are those of the graph, and stay so.
    """
    for node in outputs:
        roots = aliases.of(node)
        if len(roots) != 1 or roots[0].root.op == "placeholder":
            continue
        chain: list[fx.Node] = []
        while node is not roots[0].root and (viewed := _only_viewed(node)) is not None:
            chain.append(node)
            node = viewed
        for each in chain:
            node.append(each)


def is_plain_view(node: fx.Node, of: fx.Node) -> bool:
    """Whether `hoist_views` brings ``node`` right behind ``of``: it needs nothing but sizes."""
    while node is not of and (viewed := _only_viewed(node)) is not None:
        node = viewed
    return node is of


def _only_viewed(node: fx.Node) -> fx.Node | None:
    """Return the only node that ``node`` reads besides sizes that are there from the start."""
    read = [each for each in node.all_input_nodes if not _is_early_size(each)]
    return read[0] if len(read) == 1 else None


def _is_early_size(node: fx.Node) -> bool:
    """Whether ``node`` is a size that `hoist_sizes` brings to the start, or that is an input."""
    if not isinstance(node.meta.get("val"), SIZES):
        return False
    return node.op == "placeholder" or all(map(_is_early_size, node.all_input_nodes))


def hoist_sizes(graph: fx.Graph) -> None:
    """Move what computes sizes from sizes that are inputs to the start of ``graph``."""
    early = [node for node in graph.nodes if node.op == "call_function" and _is_early_size(node)]
    if early:
        last = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")][-1]
        for node in reversed(early):
            last.append(node)


def _copy_chain(
    graph: fx.Graph,
    view: fx.Node,
    before: fx.Node,
    views: Collection[fx.Node],
    chain: dict[fx.Node, fx.Node],
) -> fx.Node:
    """Return the copy of ``view`` that stands before ``before``, making what it lacks."""
    if view not in chain:
        for source in view.all_input_nodes:
            if source in views:
                _copy_chain(graph, source, before, views, chain)
        with graph.inserting_before(before):
            chain[view] = graph.node_copy(view, lambda node: chain.get(node, node))
    return chain[view]
