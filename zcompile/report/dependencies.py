"""A plan as a graph of what must happen before what, for those who know networkx.

Every step of the schedule is a node, and every copy that a step starts is one: copies run on
their own.  An edge leads from what has to be over to what may start then: from each step to the
next one, from a fetch or offload to its copy, from the copy to whoever waits for it, and from
each copy of a channel to the one behind it in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import networkx as nx

from zcompile.ir import (
    Channel,
    Compute,
    Fetch,
    Hardware,
    Offload,
    Release,
    Schedule,
    Update,
    Wait,
    channel_of,
    kernel_name,
    render_step,
)

Node = tuple[str, int]
"""``("step", its number)``, ``("copy", its ticket)``, or ``("latency", the ticket of a copy)``."""


def happens_before(
    schedule: Schedule, kernel_seconds: Mapping[str, float], hardware: Hardware
) -> nx.DiGraph[Node]:
    """Return the graph of ``schedule``; each node has a ``label`` and its ``seconds``.

    ``seconds`` are those of the node alone: kernels as given, copies at the full speed of
    their link, all else none.  Copies also have their ``channel``.  The latency of a copy is a
    node of its own where there is any: it passes while copies ahead of it travel.
    """
    graph: nx.DiGraph[Node] = nx.DiGraph(name=schedule.name)
    nbytes = {value.name: value.nbytes for value in schedule.values}
    last_copies: dict[Channel, Node] = {}
    for at, step in enumerate(schedule.steps):
        node = ("step", at)
        seconds = kernel_seconds[kernel_name(step)] if isinstance(step, Compute | Update) else 0.0
        graph.add_node(node, label=render_step(step), seconds=seconds)
        if at:
            graph.add_edge(("step", at - 1), node)
        match step:
            case Fetch(ticket, value) | Offload(ticket, value):
                channel = channel_of(step)
                copy = ("copy", ticket)
                link = hardware.links[channel]
                took = link.travel_s(nbytes[value])
                graph.add_node(copy, label=f"{channel} %{value}", seconds=took, channel=channel)
                if link.latency_s:
                    latency = ("latency", ticket)
                    graph.add_node(latency, label=f"{channel} latency", seconds=link.latency_s)
                    graph.add_edge(node, latency)
                    node = latency
                graph.add_edge(node, copy)
                if channel in last_copies:
                    graph.add_edge(last_copies[channel], copy)
                last_copies[channel] = copy
            case Wait(ticket):
                graph.add_edge(("copy", ticket), node)
            case Release(_, after) if after is not None:
                graph.add_edge(("copy", after), node)
            case _:
                pass
    return graph


def critical_path(graph: nx.DiGraph[Node]) -> tuple[tuple[Node, ...], float]:
    """Return the nodes that decide how long ``graph`` takes, and the seconds of all of them.

    Only what takes time is named.  Where nothing shares a resource, that is how long the plan
    takes; otherwise it takes no less.
    """
    if not graph:
        return (), 0.0
    lasting: dict[Node, float] = {node: data["seconds"] for node, data in graph.nodes(data=True)}
    weighted: nx.DiGraph[Node] = nx.DiGraph()
    weighted.add_nodes_from(graph)
    weighted.add_weighted_edges_from((a, b, lasting[b]) for a, b in graph.edges)
    # The first step begins every path: whatever it takes is not on an edge.
    path: list[Any] = nx.dag_longest_path(weighted)
    return tuple(node for node in path if lasting[node]), sum(lasting[node] for node in path)


def dot(graph: nx.DiGraph[Node]) -> str:
    """Return ``graph`` in the language of Graphviz, copies as ellipses."""
    return "\n".join(_dot_lines(graph))


def _dot_lines(graph: nx.DiGraph[Node]) -> Iterator[str]:
    yield f"digraph {_quoted(str(graph.name))} {{"
    for node, data in graph.nodes(data=True):
        shape = "box" if node[0] == "step" else "ellipse"
        label = _quoted(f"{data['label']}\n{data['seconds'] * 1000:.3f} ms")
        yield f"  {_identifier(node)} [shape={shape}, label={label}];"
    for before, after in graph.edges:
        yield f"  {_identifier(before)} -> {_identifier(after)};"
    yield "}"


def _identifier(node: Node) -> str:
    return f"{node[0]}_{node[1]}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
