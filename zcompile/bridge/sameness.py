"""Whether a graph is still what it was when it was read, or a copy of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

NodeAsRead = tuple[fx.Node, tuple[object, ...], Mapping[str, object]]
"""A node, and its arguments when it was read."""


def as_read(graph: fx.Graph) -> list[NodeAsRead]:
    """Return what `is_unchanged` and `is_copy` compare with later."""
    return [(node, node.args, node.kwargs) for node in graph.nodes]


def is_unchanged(read: Sequence[NodeAsRead], graph: fx.Graph) -> bool:
    """Whether ``graph`` has the nodes that were read, with the same arguments.

    Nodes replace their arguments as a whole, so comparing them by identity is enough.
    """
    return len(graph.nodes) == len(read) and all(
        node is known and node.args is args and node.kwargs is kwargs
        for node, (known, args, kwargs) in zip(graph.nodes, read, strict=True)
    )


def is_copy(read: Sequence[NodeAsRead], graph: fx.Graph) -> bool:
    """Whether ``graph`` is a copy of the one that was read, and neither was changed since.

    A copy has nodes of its own, with the same names, and with what tracing wrote as the same
    objects.  Of graphs that refer to attributes none is taken for a copy: it may have others.
    """
    if len(graph.nodes) != len(read):
        return False
    place: dict[fx.Node, _Place] = {}
    for number, ((node, args, kwargs), other) in enumerate(zip(read, graph.nodes, strict=True)):
        place[node] = place[other] = _Place(number)
        if node.args is not args or node.kwargs is not kwargs or not _alike(node, other, place):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Place:
    """A node's number in its graph: what stands for it when two graphs are compared."""

    number: int


def _alike(node: fx.Node, other: fx.Node, place: Mapping[fx.Node, _Place]) -> bool:
    return (
        node.op not in ("get_attr", "call_module")
        and (node.op, node.target, node.name) == (other.op, other.target, other.name)
        and node.meta.get("val") is other.meta.get("val")
        and _placed(node, place) == _placed(other, place)
    )


def _placed(node: fx.Node, place: Mapping[fx.Node, _Place]) -> Any:
    """Return the arguments of ``node``; a node that is not in its graph stands for itself."""
    return fx.map_arg((node.args, node.kwargs), lambda each: place.get(each, each))  # type: ignore[arg-type,return-value]
