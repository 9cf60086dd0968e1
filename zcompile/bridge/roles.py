"""What the inputs and outputs of a captured graph are to the user's model.

AOTAutograd describes each placeholder and output by the input of the user's graph that it
stands for; which of those are parameters is known from the tensors of the first call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, fx, nn

from zcompile.bridge import torch_private
from zcompile.bridge.capture import Roles
from zcompile.ir import Role, value_name
from zcompile.runtime.binding import Layout

SavedNames = Callable[[int], str | None]
"""From the number of a tensor that forward saves to its name; ``None`` if it must stay."""


def saved_name(number: int | str, index: int) -> str:
    """Name what the forward graph of this ``number`` saves; in both graphs it has the same index.

    >>> saved_name(0, 7)
    'saved.0.7'
    """
    return f"saved.{number}.{index}"


def _stays(_: int) -> None:
    """Name nothing."""


_PART = re.compile(r"\['([^']+)'\]|\[(\d+)\]|\.(\w+)")
_CONTAINERS = frozenset({"_modules", "_parameters", "_buffers"})

Called = Callable[[Tensor], str | None]
"""From a parameter to the name that another graph has given it, if one has."""


def _nothing_called(_: Tensor) -> None:
    """Know no name."""


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One input of the user's graph: its name and what it is; of a parameter, how it lies."""

    name: str
    role: Role
    layout: Layout | None = None


def graph_inputs(
    module: fx.GraphModule,
    example_inputs: Sequence[object],
    owner: object | None,
    called: Called = _nothing_called,
) -> dict[int, GraphInput]:
    """Name the inputs of Dynamo's graph by their position, no two alike.

    ``owner`` gives qualified names if it is a module.  Other parameters keep the names by which
    they are ``called``, else are called as the code reaches them: ``model.layers.0.weight``.
    """
    known: dict[int, str] = {}
    if isinstance(owner, nn.Module):
        for name, tensor in (*owner.named_parameters(), *owner.named_buffers()):
            known[id(tensor)] = name
    found: dict[int, GraphInput] = {}
    taken: dict[str, object] = {}
    for at, node in enumerate(module.graph.find_nodes(op="placeholder")):
        given = example_inputs[at] if at < len(example_inputs) else None
        role = _role(given, is_named=id(given) in known)
        if id(given) in known:
            name = value_name(known[id(given)])
        else:
            earlier = called(cast("Tensor", given)) if role is Role.PARAMETER else None
            name = earlier or value_name(_name_from_source(node))
        if taken.setdefault(name, given) is not given:
            name = f"{name}.{at}"
        is_parameter = role is Role.PARAMETER
        found[at] = GraphInput(
            name, role, Layout.of(cast("Tensor", given)) if is_parameter else None
        )
    return found


def parameter_names(
    inputs: Mapping[int, GraphInput], owner: object | None
) -> tuple[str, ...] | None:
    """Return the names of all parameters of ``owner``, and of those among ``inputs``.

    ``None`` if ``owner`` is no module: then its other graphs may bring other parameters.
    """
    if not isinstance(owner, nn.Module):
        return None
    own = (value_name(name) for name, _ in owner.named_parameters())
    used = (each.name for each in inputs.values() if each.role is Role.PARAMETER)
    return tuple(dict.fromkeys((*own, *used)))


def _role(given: object, *, is_named: bool) -> Role:
    if isinstance(given, nn.Parameter) and _is_plain(given):
        return Role.PARAMETER
    return Role.BUFFER if is_named else Role.INPUT


def _is_plain(tensor: Tensor) -> bool:
    """Whether the bytes of ``tensor`` can be copied as they lie: else it stays as it is."""
    return tensor.layout is torch.strided and tensor.device.type == "cpu"


def _name_from_source(node: fx.Node) -> str:
    """Name an input by the variable and the attributes that lead to it, but for ``self``."""
    parts = ["".join(each) for each in _PART.findall(torch_private.source_text(node))]
    if parts[:1] == ["self"]:
        del parts[0]
    return ".".join(each for each in parts if each not in _CONTAINERS) or node.name


def roles_of(
    graph: fx.Graph,
    inputs: Mapping[int, GraphInput],
    *,
    leaving: SavedNames = _stays,
    coming: SavedNames = _stays,
) -> Roles:
    """Read the roles of one of AOTAutograd's graphs off its descriptors.

    ``leaving`` says what the tensors are called that a forward graph saves for backward, and
    ``coming`` the same for a backward graph; by default all stay on the device.
    """
    managed: dict[fx.Node, str] = {}
    placeholders: dict[fx.Node, Role] = {}
    held: set[fx.Node] = set()
    for node in graph.find_nodes(op="placeholder"):
        own = inputs.get(_or(torch_private.graph_input_index(node), -1))
        if own is not None and own.role is Role.PARAMETER:
            managed[node] = own.name
        is_saved = torch_private.is_saved_activation(node)
        placeholders[node] = own.role if own else Role.ACTIVATION if is_saved else Role.INPUT
        if not is_saved and node not in managed:
            held.add(node)
    (output,) = graph.find_nodes(op="output")
    # What forward has saved comes first among the tensors: parameters, inputs, activations.
    tensors = [node for node in placeholders if isinstance(node.meta.get("val"), Tensor)]
    saved = {
        node: name
        for at, node in enumerate(tensors)
        if placeholders[node] is Role.ACTIVATION and (name := coming(at)) is not None
    }
    outputs = {
        at: name
        for at, descriptor in enumerate(torch_private.output_descriptors(output))
        if (index := torch_private.saved_index(descriptor)) is not None
        and (name := leaving(index)) is not None
    }
    parameters = {at: each.name for at, each in inputs.items() if each.role is Role.PARAMETER}
    gradients = {
        at: parameters[of]
        for at, descriptor in enumerate(torch_private.output_descriptors(output))
        if (of := torch_private.gradient_input_index(descriptor)) in parameters
    }
    changed = {
        torch_private.mutated_input_index(each) for each in torch_private.output_descriptors(output)
    } - {None}
    indices = {node: torch_private.graph_input_index(node) for node in placeholders}
    return Roles(
        managed=managed,
        placeholders=placeholders | dict.fromkeys(saved, Role.SAVED),
        saved=saved,
        leaving=outputs,
        held=frozenset(held),
        changed=frozenset(node for node, at in indices.items() if at in changed),
        changes_unknown=not changed <= {*indices.values()},
        gradients=gradients,
        layouts={
            each.name: each.layout.of_gradient()
            for each in inputs.values()
            if each.layout is not None
        },
    )


def _or(number: int | None, otherwise: int) -> int:
    return otherwise if number is None else number
