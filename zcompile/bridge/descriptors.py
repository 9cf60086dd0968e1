"""What AOTAutograd says of placeholders and outputs of its graphs; a part of ``torch_private``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx
from torch._functorch._aot_autograd import descriptors
from torch._functorch._aot_autograd.descriptors import (
    GradAOTOutput,
    InputMutationAOTOutput,
    PlainAOTInput,
)


def graph_input_index(placeholder: fx.Node) -> int | None:
    """Return which input of the user's graph ``placeholder`` is, if it is one."""
    descriptor = placeholder.meta.get("desc")
    return descriptor.idx if isinstance(descriptor, PlainAOTInput) else None


def is_saved_activation(placeholder: fx.Node) -> bool:
    """Whether a placeholder of a backward graph is something that forward made and saved."""
    return placeholder.meta.get("desc") is None


def gradient_input_index(descriptor: object) -> int | None:
    """Return the input of the user's graph whose gradient an output is, if it is one."""
    if isinstance(descriptor, GradAOTOutput) and isinstance(descriptor.grad_of, PlainAOTInput):
        return descriptor.grad_of.idx
    return None


_SAVED: tuple[type[Any], ...] = tuple(
    getattr(descriptors, name)
    for name in ("SavedForBackwardsAOTOutput", "SavedForBackwardsNoVcCheckAOTOutput")
    if hasattr(descriptors, name)  # the second one, for unchecked versions, came after 2.11
)


def saved_index(descriptor: object) -> int | None:
    """Return the number of an output among what forward saves for backward, if it is one."""
    index: object = getattr(descriptor, "idx", None) if isinstance(descriptor, _SAVED) else None
    return index if isinstance(index, int) else None


def mutated_input_index(descriptor: object) -> int | None:
    """Return the input of the user's graph that AOTAutograd changes to an output; -1 if unknown.

    ``None`` if it changes none to that output.
    """
    if not isinstance(descriptor, InputMutationAOTOutput):
        return None
    changed = descriptor.mutated_input
    return changed.idx if isinstance(changed, PlainAOTInput) else -1


def output_descriptors(output: fx.Node) -> Sequence[object]:
    """Return what AOTAutograd says about each output, as long as the output's list."""
    found: Sequence[object] = output.meta.get("desc") or ()
    return [*found, *[None] * (len(output.args[0]) - len(found))]  # type: ignore[arg-type]
