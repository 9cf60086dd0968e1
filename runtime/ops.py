"""The targets of the nodes that emission writes: one function a step, on the executor at hand.

They are plain functions whose first argument is the executor of this invocation.  An
operator registered with torch would have to find its executor in a table of the process;
these find it in their arguments.  Emitted graphs run in Python and are never traced again,
so no schema or fake kernel is needed (``docs/decisions/0002-ops-are-functions.md``).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from zcompile.ir import Tier
from zcompile.runtime.executor import Executor


def fetch(run: Executor, ticket: int, value: str, src: str, offset: int) -> None:
    """Start copying ``value`` from tier ``src`` to byte ``offset`` of the arena."""
    run.fetch(ticket, value, Tier(src), offset)


def wait(run: Executor, ticket: int, value: str) -> Tensor:
    """Block until fetch ``ticket`` has landed; return the tensor over the arena copy."""
    return run.wait(ticket, value)


def offload(run: Executor, ticket: int, value: str, dst: str, tensor: Tensor) -> Tensor:
    """Start copying ``tensor`` to tier ``dst``; return the tensor over its new home."""
    return run.offload(ticket, value, Tier(dst), tensor)


def release(run: Executor, value: str, after: int | None) -> None:
    """Free the device copy of ``value`` once offload ``after`` has landed."""
    run.release(value, after)


def restride(base: Tensor, shape: Sequence[int], stride: Sequence[int], shift: int) -> Tensor:
    """Return the view of the memory of ``base`` that begins ``shift`` elements later."""
    return base.as_strided(tuple(shape), tuple(stride), int(base.storage_offset()) + shift)
