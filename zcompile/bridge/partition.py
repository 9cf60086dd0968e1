"""Split a joint graph into forward and backward, and look at both before either is compiled."""

from __future__ import annotations

from typing import Any

from torch import fx

from zcompile.bridge import torch_private


def partition(joint: fx.GraphModule, inputs: Any, **given: Any) -> dict[str, fx.GraphModule]:
    """Return the forward and the backward graph of ``joint``.

    One partitioner with one setting, so that what is saved for backward depends on the
    graph alone: plans may move a saved activation but never change which there are.
    """
    forward, backward = torch_private.min_cut_rematerialization_partition(joint, inputs, **given)
    return {"forward": forward, "backward": backward}
