"""Brings the parameters of a call to the homes that the placement gives them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Protocol

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from zcompile.ir import Tier
from zcompile.registry import Registry
from zcompile.runtime.adoption import LeftAlone
from zcompile.runtime.machine import Machine
from zcompile.runtime.sharers import outlive, tensors_within


class Host(Protocol):
    """The session of one compiled model, as far as moving needs it."""

    @property
    def machine(self) -> Machine:
        """Homes and transfers of the model."""
        ...

    def rests_in(self, tensor: Tensor) -> Tier:
        """Return the tier that ``tensor`` is on now."""
        ...


class MovingIn:
    """Moves the parameters in a registry that are not at home.

    It remembers what cannot be moved, and what goes where another parameter over the same memory
    goes, each by the address at which that was so.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._staying: MutableMapping[Tensor, int] = WeakIdKeyDictionary()

    def bring(self, host: Host, managed: Mapping[str, Tensor], homes: Mapping[str, Tier]) -> bool:
        """Bring ``managed`` to ``homes``; say whether anything had to move."""
        straying = {
            name: each
            for name, each in managed.items()
            if self._may_move(each) and host.rests_in(each) is not homes[name]
        }
        if straying:
            self._adopt(host.machine, straying, homes)
        return bool(straying)

    def _may_move(self, parameter: Tensor) -> bool:
        return not self._staying or self._staying.get(parameter) != parameter.data_ptr()

    def _adopt(
        self, machine: Machine, straying: Mapping[str, Tensor], homes: Mapping[str, Tier]
    ) -> None:
        """Move parameters to their tiers, and with them whatever tensors share their memory.

        Those over one storage all go where the first of them by name goes, though they may be
        in different graphs: they stay tied, and a graph does not move what another has moved.
        """
        over: dict[int, list[Tensor]] = {}
        for each in straying.values():
            over.setdefault(each.untyped_storage().data_ptr(), []).append(each)
        stretches = {at: each[0].untyped_storage().nbytes() for at, each in over.items()}
        moving: dict[Tier, list[tuple[str, Tensor]]] = {}
        staying: list[Tensor] = []
        for at, sharers in tensors_within(stretches).items():
            own = {id(each) for each in over[at]}
            tensors = [*over[at], *(each for each in sharers if id(each) not in own)]
            names = [self._registry.name_of(each) or "" for each in tensors]
            first = min(name for name in names if name in homes)
            for name, each in zip(names, tensors, strict=True):
                if not name:
                    outlive(each)
                elif name != first:
                    staying.append(each)
                label = name or f"a tensor over {first}"
                moving.setdefault(homes[first], []).append((label, each))
        for tier, labelled in moving.items():
            left = machine.homes.adopt(labelled, tier, machine.transfers)
            labels = {each.label for each in left}
            staying += [each for label, each in labelled if label in labels]
            _tell(left)
        for each in staying:
            self._staying[each] = each.data_ptr()


def _tell(left: Sequence[LeftAlone]) -> None:
    """Tell of what cannot be moved."""
    if left:
        reasons = "; ".join(f"{each.label}: {each.reason}" for each in left)
        warnings.warn(
            f"{len(left)} parameters stay in ordinary memory, outside the budgets "
            f"({reasons}); give each dense memory of its own to have it managed",
            stacklevel=2,
        )
