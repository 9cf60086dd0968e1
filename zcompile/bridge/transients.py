"""What a segment holds at its worst moment: the memory the steps of a schedule do not show."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import fx

from zcompile.bridge.aliases import Aliases, Size, Storage
from zcompile.bridge.segments import Segment


def transient_bytes(
    segment: Segment,
    aliases: Aliases,
    last_reader: Mapping[Storage, fx.Node],
    size_of: Callable[[Size], int],
    *,
    frees_reads: bool,
) -> int:
    """Return the peak of what ``segment`` holds beyond what was live before it, in bytes."""
    held = held_bytes(segment, aliases, last_reader, size_of, frees_reads=frees_reads)
    return max((0, *held))


def held_bytes(
    segment: Segment,
    aliases: Aliases,
    last_reader: Mapping[Storage, fx.Node],
    size_of: Callable[[Size], int],
    *,
    frees_reads: bool,
) -> tuple[int, ...]:
    """Return what ``segment`` holds during each of its operations beyond what was live before it.

    Every operation is taken to make its outputs anew and to free what it was the last to
    read.  That is exact node by node, workspaces inside an operation aside, and an upper
    bound for a compiled segment, which makes fewer buffers; such a segment keeps what it
    was given to its end (``frees_reads=False``).
    """
    inside = set(segment.nodes)
    held = 0
    during: list[int] = []
    dying: dict[fx.Node, list[Storage]] = {}
    for storage in {each for node in segment.nodes for each in aliases.read_by(node)}:
        if frees_reads or storage.root in inside:
            dying.setdefault(last_reader[storage], []).append(storage)
    for node in segment.nodes:
        made = [each for each in aliases.of(node) if each.root is node]
        held += sum(size_of(each.nbytes) for each in made)
        during.append(held)
        held -= sum(size_of(each.nbytes) for each in made if each not in last_reader)
        held -= sum(size_of(each.nbytes) for each in dying.get(node, ()) if _frees(each, inside))
    return tuple(during)


def _frees(storage: Storage, inside: set[fx.Node]) -> bool:
    """Whether the end of its last read frees ``storage``: not what belongs to a caller."""
    return storage.root in inside or storage.root.op != "placeholder"
