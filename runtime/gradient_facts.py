"""What is known of gradients at home besides their bytes: sums of squares, and a factor to come.

Note [Which gradient is meant].  A fact is about one memory and one version: the mapping of the
home, which no later home shares, and the count of changes that torch keeps for every tensor
over it.  Autograd adds to a gradient in place and so raises the count.

A sum is used only if nobody has written the gradient in ways that torch does not count: see
``rest``.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

from torch import Tensor

from zcompile.runtime.homes import Homes
from zcompile.runtime.mapping import HomeMapping
from zcompile.runtime.rest import untouched
from zcompile.runtime.square_sums import can_sum, square_sum

LEAST_ROOM = 64
"""Facts about gradients that are gone are dropped when there are more than so many."""


class ChangedAfterClipping(RuntimeError):
    """A gradient that was to be scaled was changed before that was done."""


@dataclass(slots=True)
class _Fact:
    mapping: HomeMapping
    version: int
    square_sum: float | None = None
    factor: Tensor | None = None


class GradientFacts:
    """The facts about the gradients of one machine.

    ``gathering`` says that sums are taken while gradients are stored; who needs them sets it.
    """

    def __init__(self, homes: Homes) -> None:
        self.gathering = False
        self._homes = homes
        self._lock = Lock()
        self._facts: dict[int, _Fact] = {}
        self._room = LEAST_ROOM

    def stored(self, home: Tensor, content: Tensor) -> None:
        """Gather the sum of ``content``, which is on its way to ``home``, a whole gradient."""
        mapping = self._mapping(home)
        lease = None if mapping is None else mapping.lease
        if self.gathering and mapping is not None and lease is not None and can_sum(content):
            lease.watch()
            found = square_sum(content)
            self._enter(_Fact(mapping, home._version, square_sum=found))

    def square_sum(self, gradient: Tensor) -> float | None:
        """Return the sum that was gathered, if ``gradient`` is as it was then."""
        fact = self._fact(gradient)
        if fact is None or fact.square_sum is None or fact.version != gradient._version:
            return None
        lease = fact.mapping.lease
        return fact.square_sum if lease is not None and untouched(lease) else None

    def postpone(self, gradient: Tensor, factor: Tensor) -> bool:
        """Let ``gradient`` be multiplied by ``factor`` when it is used; ``False`` if it cannot.

        It can if it is at home, in a memory of its own, and waits for no other factor.
        """
        mapping = self._mapping(gradient)
        if mapping is None or self.factor(gradient) is not None:
            return False
        known = self._fact(gradient)
        at_hand = self.square_sum(gradient)
        if known is not None:
            known.version, known.square_sum, known.factor = gradient._version, at_hand, factor
        else:
            self._enter(_Fact(mapping, gradient._version, factor=factor))
        return True

    def factor(self, gradient: Tensor) -> Tensor | None:
        """Return the factor that ``gradient`` waits for.

        Raises ``ChangedAfterClipping`` if it was changed meanwhile: what it would be now if it
        had been scaled in time cannot be told.
        """
        fact = self._fact(gradient)
        if fact is None or fact.factor is None:
            return None
        if fact.version != gradient._version:
            raise ChangedAfterClipping(
                f"a gradient of shape {tuple(gradient.shape)} was changed after "
                "zcompile.clip_grad_norm_ had clipped it and before it was used: call "
                "torch.nn.utils.clip_grad_norm_ instead, or let nothing change gradients between "
                "clipping and the step (zero_grad(set_to_none=False) does, too)"
            )
        return fact.factor

    def settle(self, gradient: Tensor) -> None:
        """Multiply ``gradient`` by its factor now, where it rests, if it waits for one."""
        factor = self.factor(gradient)
        if factor is not None:
            with self._lock:
                self._facts.pop(gradient.data_ptr(), None)
            gradient.detach().mul_(factor)

    def _enter(self, fact: _Fact) -> None:
        with self._lock:
            self._facts[fact.mapping.address] = fact
            if len(self._facts) <= self._room:
                return
            living = {
                at: each for at, each in self._facts.items() if each.mapping.buffer() is not None
            }
            # Twice as many: so each fact is looked at a few times, however many there are.
            self._facts, self._room = living, max(LEAST_ROOM, 2 * len(living))

    def _fact(self, gradient: Tensor) -> _Fact | None:
        if not self._facts:
            return None
        mapping = self._mapping(gradient)
        fact = None if mapping is None else self._facts.get(mapping.address)
        return fact if fact is not None and fact.mapping is mapping else None

    def _mapping(self, gradient: Tensor) -> HomeMapping | None:
        """Return the mapping of the home that ``gradient`` fills alone."""
        place = self._homes.find(gradient)
        if place is None or place.byte_offset or place.home.nbytes != gradient.nbytes:
            return None
        return place.home.mapping
