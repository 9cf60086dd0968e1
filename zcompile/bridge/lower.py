"""One way through AOTAutograd, for whoever captures: the backend, and what only looks ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import fx

from zcompile.bridge import inductor, torch_private
from zcompile.bridge.as_eager import AS_EAGER
from zcompile.bridge.regions import inline_regions

Compile = Callable[[str, fx.GraphModule, Sequence[Any]], Any]
"""From a kind of graph ("forward", "backward", "inference"), a graph and its inputs to a call."""

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


def lower(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    eager: bool,
    compile_graph: Compile,
    partition: Partition,
) -> Callable[..., Any]:
    """Take Dynamo's ``module`` through AOTAutograd; return what it makes of it.

    ``eager`` asks for the operations that PyTorch itself runs, or that have the same bits;
    otherwise for those that Inductor expects.
    """
    inline_regions(module)
    aot = torch_private.aot_autograd(
        fw_compiler=partial(compile_graph, "forward"),
        bw_compiler=partial(compile_graph, "backward"),
        inference_compiler=partial(compile_graph, "inference"),
        partition_fn=partition,
        decompositions=dict(AS_EAGER) if eager else inductor.decompositions(),
    )
    outside = torch_private.backward_outside_autocast() if eager else nullcontext()
    with torch_private.lazy_modules(), outside:
        return aot(module, example_inputs)
