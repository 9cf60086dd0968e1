"""Compute what only the output needs as soon as that takes no more memory.

To save less, the partitioner moves operations from backward to forward, and they stand at the end
there: one for every norm of the model, say.  The last segment would read something of every layer
and grow with depth, in time to compile and in what it keeps alive.  Behind the last reader of what
they use up they are part of their layer.

Note [What may be moved].  An operation whose result goes to the output only, perhaps through
others of the kind, that draws no random numbers and reads nothing that anybody changes.  It
computes the same wherever it stands.  What reads a parameter stays where it is: the views of it
stand right before (see ``views``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import fx

from zcompile.bridge.aliases import Aliases, Size, Storage
from zcompile.bridge.sizes import hint, is_known
from zcompile.bridge.torch_private import is_random, leaves_operands

Place = tuple[int, ...]
"""Where a node stands: compared as tuples are, places are in the order of the graph."""


def advance(graph: fx.Graph, aliases: Aliases, managed: Collection[fx.Node]) -> None:
    """Move operations at the end of ``graph`` up, in place; ``aliases`` are its, and stay so.

    Views go right behind what they view.  Any other operation goes behind the last other reader
    of the storages that end with it, if together they are at least as large as what it makes.
    """
    fixed = {each for node in managed for each in aliases.of(node)} | _changed(graph, aliases)
    late = _late(graph, aliases, fixed)
    readers: dict[Storage, list[fx.Node]] = {}
    for node in graph.nodes:
        for storage in aliases.read_by(node):
            readers.setdefault(storage, []).append(node)
    places: dict[fx.Node, Place] = {node: (at,) for at, node in enumerate(graph.nodes)}
    behind: dict[fx.Node, int] = {}
    for node in late:
        anchor = max(_before(node, aliases, readers), key=places.__getitem__)
        if anchor.op == "placeholder" or anchor.next is node:
            continue
        anchor.append(node)
        # The next one to go behind the same anchor will stand before this one.
        behind[anchor] = behind.get(anchor, 0) - 1
        places[node] = (*places[anchor], behind[anchor])


def _late(graph: fx.Graph, aliases: Aliases, fixed: Collection[Storage]) -> tuple[fx.Node, ...]:
    """Return the nodes that may be moved, in the order of the graph."""
    found: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        if (
            node.users
            and all(user.op == "output" or user in found for user in node.users)
            and node.all_input_nodes
            and leaves_operands(node.target)
            and not is_random(node.target)
            and not any(each in fixed for each in (*aliases.read_by(node), *aliases.of(node)))
        ):
            found[node] = None
    return tuple(reversed(found))


def _changed(graph: fx.Graph, aliases: Aliases) -> set[Storage]:
    """Return what an operation of ``graph`` may change in place."""
    return {
        storage
        for node in graph.nodes
        if node.op.startswith("call_") and not leaves_operands(node.target)
        for storage in aliases.read_by(node)
    }


def _before(
    node: fx.Node, aliases: Aliases, readers: dict[Storage, list[fx.Node]]
) -> Iterator[fx.Node]:
    """Yield the nodes behind all of which ``node`` costs no memory; its predecessor if it does."""
    yield from node.all_input_nodes
    read = aliases.read_by(node)
    if all(each in read for each in aliases.of(node)):
        return
    ending = [each for each in read if _ends_with(node, each, readers)]
    sizes: list[Size] = [each.nbytes for each in (*ending, *aliases.of(node))]
    gained = sum(hint(each.nbytes) for each in ending) if all(map(is_known, sizes)) else 0
    if not ending or gained < sum(hint(each.nbytes) for each in aliases.of(node)):
        yield node.prev
        return
    for storage in ending:
        yield from (each for each in readers[storage] if each is not node)


def _ends_with(node: fx.Node, storage: Storage, readers: dict[Storage, list[fx.Node]]) -> bool:
    """Whether ``node`` reads ``storage`` last: no output is in it, nobody outside holds it."""
    return storage.root.op != "placeholder" and readers[storage][-1] is node
