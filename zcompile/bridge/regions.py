"""Regions that Dynamo has traced once for several callers, put back where they are called.

``torch.compiler.nested_compile_region`` keeps a region out of the graph, so that equal layers are
traced and compiled once.  But nothing can be moved in the middle of such a call, and what it
returns may be a view of a weight that it was given.  Equal segments are compiled once anyway.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, cast

from torch import fx

from zcompile.bridge import torch_private


def inline_regions(module: fx.GraphModule) -> None:
    """Put the operations of each region in place of its calls, in place."""
    calls = module.graph.find_nodes(op="call_function", target=torch_private.INVOKE_SUBGRAPH)
    for call in calls:
        _inline(module, call)
    if calls:
        module.recompile()


def _inline(module: fx.GraphModule, call: fx.Node) -> None:
    subgraph, _, *operands = cast("Any", call.args)
    region: Any = module.get_submodule(subgraph.target)
    inline_regions(region)
    graph: fx.Graph = region.graph
    known = dict(zip(graph.find_nodes(op="placeholder"), operands, strict=True))
    with module.graph.inserting_before(call):
        for node in graph.find_nodes(op="get_attr"):
            name = f"{subgraph.target}_{node.target}".replace(".", "_")
            setattr(module, name, attrgetter(node.target)(region))
            known[node] = module.graph.get_attr(name)
            known[node].meta = dict(node.meta)
        results: Any = module.graph.graph_copy(graph, known)
    for user in list(call.users):
        user.replace_all_uses_with(results[cast("Any", user.args[1])])
        module.graph.erase_node(user)
    module.graph.erase_node(call)
    if not subgraph.users:
        module.graph.erase_node(subgraph)
