"""Optimizer states that lie in ordinary memory, moved to their homes.

Note [States of any kind].  A state of the shape of its parameter has a place of its own in
the placement.  Others, such as the history of LBFGS, are known to no plan: they go to the
file, if there is one.  What is much smaller than its parameter, such as counts, rows and
columns, stays where its optimizer made it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from zcompile.hooks import takes_hooks
from zcompile.ir import PAGE_BYTES, Tier, value_name
from zcompile.optim.host import Host
from zcompile.runtime.objects import all_objects
from zcompile.runtime.sharers import outlive, tensors_within

SMALL_FRACTION = 16
"""A state of less than 1/16 of its parameter, or of less than a page, stays where it is."""


class Names(Protocol):
    """What parameters are called."""

    def name_of(self, parameter: Tensor) -> str | None:
        """Return what ``parameter`` is called; ``None`` if it is none of those at hand."""
        ...


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One state of ``param``, managed; ``placed`` if the placement has a home for it."""

    name: str
    tensor: Tensor
    param: Tensor
    placed: bool


@dataclass(frozen=True, slots=True)
class Brought:
    """Bytes of states that were in ordinary memory: moved home, and left where they were."""

    moved_bytes: int = 0
    staying_bytes: int = 0


def states_of(optimizer: Optimizer, host: Host) -> Iterator[StateTensor]:
    """Yield the states of the managed parameters of any optimizer, small ones aside."""
    # A loaded state dict can leave keys that are no parameters.
    states = cast("Mapping[object, Mapping[str, object]]", optimizer.state)
    for param, state in states.items():
        if not isinstance(param, Tensor) or (name := host.name_of(param)) is None:
            continue
        small_bytes = max(PAGE_BYTES, param.nbytes // SMALL_FRACTION)
        for key, value in state.items():
            kind = value_name(str(key))
            if isinstance(value, Tensor) and value.shape == param.shape and value.dim() > 0:
                yield StateTensor(f"{name}:{kind}", value, param, placed=True)
                continue
            for tensor in _tensors_in(value):
                if tensor.layout is torch.strided and tensor.nbytes >= small_bytes:
                    yield StateTensor(f"{name}:{kind}", tensor, param, placed=False)


def bring_home(optimizer: Optimizer, host: Host) -> Brought:
    """Move every state to its tier; return the bytes moved, and those that have to stay.

    The tensor objects stay, so whoever else holds one sees it at home too, and what shares
    memory with a state still does.  States that lie on their tier already are not touched.
    What was at home in another session moves too, and is not among the bytes.
    """
    strays: dict[Tier, list[StateTensor]] = {}
    staying_bytes = 0
    for state in states_of(optimizer, host):
        place = host.machine.homes.find(state.tensor)
        now = place.home.tier if place is not None else Tier.DEVICE
        wanted = host.tier_of(state.name) if state.placed else host.overflow_tier()
        if now is not wanted:
            strays.setdefault(wanted, []).append(state)
        elif not state.placed and now is Tier.DEVICE:
            staying_bytes += state.tensor.nbytes
    moved_bytes = 0
    for tier, states in sorted(strays.items(), key=lambda stray: stray[0] is Tier.DEVICE):
        homeless = [each for each in states if not host.elsewhere(each.tensor)]
        sharers = _sharers(states, host)
        labelled = [(state.name, state.tensor) for state in states] + sharers
        host.machine.homes.adopt(labelled, tier, host.machine.transfers)
        for each in homeless:
            if _tier(each.tensor, host) is tier:
                moved_bytes += each.tensor.nbytes
            else:
                staying_bytes += each.tensor.nbytes
    return Brought(moved_bytes, staying_bytes)


def optimizers_over(names: Names) -> list[Optimizer]:
    """Return the optimizers of this process that hold parameters with ``names``.

    Looks through everything that Python keeps track of: see ``sharers.tensors_within``.  A
    wrapper, such as accelerate's, is no optimizer of its own: the one within does the work.
    """
    found = [cast("Optimizer", each) for each in all_objects() if issubclass(type(each), Optimizer)]
    return [each for each in found if takes_hooks(each) and holds_managed(each, names)]


def holds_managed(optimizer: Optimizer, names: Names) -> bool:
    """Say whether ``optimizer`` holds a parameter with one of ``names``."""
    groups: list[dict[str, list[Tensor]]] = getattr(optimizer, "param_groups", [])
    return any(names.name_of(param) is not None for group in groups for param in group["params"])


def _tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in cast("Mapping[object, object]", value).values():
            yield from _tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[object]", value):
            yield from _tensors_in(each)


def _tier(tensor: Tensor, host: Host) -> Tier:
    place = host.machine.homes.find(tensor)
    return place.home.tier if place is not None else Tier.DEVICE


def _sharers(states: Sequence[StateTensor], host: Host) -> list[tuple[str, Tensor]]:
    """Return the tensors that share memory with ``states`` in ordinary memory, with labels.

    A state that lies alone in a storage larger than itself is taken out of it: the whole of
    it would move otherwise.
    """
    strays = [
        state
        for state in states
        if state.tensor.layout is torch.strided
        and state.tensor.device.type == "cpu"
        and host.machine.homes.find(state.tensor) is None
    ]
    storages = {state.tensor.untyped_storage().data_ptr(): state for state in strays}
    stretches = {at: e.tensor.untyped_storage().nbytes() for at, e in storages.items()}
    own = {id(state.tensor) for state in strays}
    sharers: list[tuple[str, Tensor]] = []
    for at, tensors in tensors_within(stretches).items():
        others = [each for each in tensors if id(each) not in own]
        for each in others:
            outlive(each)
        sharers += [(f"a tensor over {storages[at].name}", each) for each in others]
        alone = storages[at].tensor
        if not others and len(tensors) == 1 and stretches[at] != alone.nbytes:
            alone.data = alone.detach().clone(memory_format=torch.preserve_format)
    return sharers
