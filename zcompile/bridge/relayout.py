"""Gradients laid out as their homes are, by the graph itself.

A matrix product often leaves a gradient transposed, a convolution leaves it in the format of
its input, a broadcast leaves one element for all.  The copy that a home needs then belongs to
the graph, where it is planned and counted like every other operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from zcompile.bridge.aliases import tensors_of
from zcompile.runtime.binding import Layout

_ATEN: Any = torch.ops.aten


def lay_out(graph: fx.Graph, leaving: Mapping[int, fx.Node], layouts: Mapping[int, Layout]) -> bool:
    """Let the outputs at the positions in ``leaving`` leave in ``layouts``; say if any changed.

    A copy stands right behind what it copies.  What is no dense tensor leaves as it is.
    """
    (output,) = graph.find_nodes(op="output")
    values: Any = list(output.args[0])
    for at, node in leaving.items():
        tensors = list(tensors_of(node))
        if len(tensors) == 1 and not _lies(tensors[0], layouts[at]):
            values[at] = _copy(graph, node, layouts[at])
    if all(values[at] is node for at, node in leaving.items()):
        return False
    output.args = (tuple(values),)
    return True


def _lies(tensor: Tensor, layout: Layout) -> bool:
    """Whether ``tensor`` needs no copy, or none that a graph could make."""
    return (
        tensor.layout is not torch.strided
        or tuple(tensor.shape) != layout.shape
        or layout.holds(tensor)
    )


def _copy(graph: fx.Graph, node: fx.Node, layout: Layout) -> fx.Node:
    """Insert operations behind ``node`` that copy it into ``layout``, which has no gaps."""
    order = sorted(range(len(layout.shape)), key=lambda axis: -layout.stride[axis])
    back = sorted(range(len(order)), key=order.__getitem__)
    turned = order != sorted(order)
    if turned:
        node = _append(graph, node, _ATEN.permute.default, order)
    node = _append(graph, node, _ATEN.clone.default, memory_format=torch.contiguous_format)
    return _append(graph, node, _ATEN.permute.default, back) if turned else node


def _append(
    graph: fx.Graph, node: fx.Node, target: Any, *args: list[int], **options: torch.memory_format
) -> fx.Node:
    """Insert a call of ``target`` for ``node``, right behind it."""
    with graph.inserting_after(node):
        made = graph.call_function(target, (node, *args), {**options})
    made.meta["val"] = target(node.meta["val"], *args, **options)
    return made
