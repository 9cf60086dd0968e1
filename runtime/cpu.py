"""The executor for a CPU: fetched copies in the arena, copies by the machine's threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor

from zcompile.ir import Fetch, Offload, Role, Schedule, Tier, page_aligned
from zcompile.runtime.arena import Arena
from zcompile.runtime.binding import Binding, Layout
from zcompile.runtime.executor import Kernels, NativeUpdates
from zcompile.runtime.extents import Lease
from zcompile.runtime.gradient_facts import GradientFacts
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.native_carrier import NativeCarrier
from zcompile.runtime.rest import Rest
from zcompile.runtime.shadows import Shadows
from zcompile.runtime.spot import Move, Region, Spot, spot_of
from zcompile.runtime.stream_run import carry_out
from zcompile.runtime.streaming import Translator, can_translate
from zcompile.runtime.tickets import Tickets
from zcompile.runtime.transfers import Copies, Transfers


class Equipment(Protocol):
    """What an executor uses of the ``Machine`` that lends it."""

    homes: Homes
    transfers: Transfers
    ledger: Ledger
    facts: GradientFacts

    def landed(self, gradient: Landed) -> None:
        """Take note that a new gradient is in its home."""
        ...


@dataclass(frozen=True, slots=True)
class _Outgoing:
    """The device copy that an offload reads; ``extra_bytes`` if it was made for the offload."""

    tensor: Tensor
    extra_bytes: int


@dataclass(frozen=True, slots=True)
class Landed:
    """The gradient called ``value``, whose copy to its new home is over; as it was stored."""

    value: str
    rest: Rest
    layout: Layout


class CpuExecutor:
    """Executes one invocation of ``schedule``: see ``Executor`` for the steps.

    ``bindings`` says what the names of managed values stand for; what is offloaded and has
    none gets a home in which it lies as it does.  ``arena`` is on lease for this invocation.
    ``copies`` starts the copies, by default the machine's transfers.

    If the schedule vacates, the memory of a slot is given back when its copy is released.

    A schedule that updates values calls ``prepare`` before its first step and ``commit``
    after its last.  Until then their homes in the file have the bytes of before, so that
    any error leaves them as they were.  Homes on other tiers are changed in place.

    An error in a copy reaches whoever waits for it: ``wait``, ``release`` or, if nobody
    did, ``close``.
    """

    def __init__(
        self,
        schedule: Schedule,
        bindings: Mapping[str, Binding],
        arena: Arena,
        machine: Equipment,
        copies: Copies | None = None,
    ) -> None:
        assert schedule.arena_bytes <= arena.nbytes, "the arena is too small for the schedule"
        self._schedule = schedule
        self._bindings = bindings
        self._arena = arena
        self._vacates = schedule.vacates
        self._homes = machine.homes
        self._copies: Copies = copies or machine.transfers
        self._ledger = machine.ledger
        self._facts = machine.facts
        self._gradients = {each.name for each in schedule.values if each.role is Role.GRADIENT}
        self._landed = machine.landed
        self._landing: dict[str, Landed] = {}
        self._tickets = Tickets()
        self._offsets: dict[str, int] = {}
        self._outgoing: dict[str, _Outgoing] = {}
        self._moved_to: dict[str, Spot] = {}
        self._shadows = Shadows(machine.homes, _updated(schedule, bindings))

    def prepare(self) -> None:
        """Lease the space for every updated value; ``StorageError`` if there is too little."""
        self._shadows.prepare()

    def fetch(self, ticket: int, value: str, src: Tier, offset: int) -> None:
        del src  # where the bytes rest now decides, even if the plan was made before they moved
        self._tickets.check_new(ticket)
        region = self._slot(value, offset)
        self._offsets[value] = offset
        self._tickets.start(ticket, value, self._spot(value).fetch(self._copies, region, value))

    def wait(self, ticket: int, value: str) -> Tensor:
        self._tickets.finish(ticket, value)
        layout = self._bindings[value].layout
        return self._arena.tensor(self._offsets[value], layout.dtype, layout.shape, layout.stride)

    def offload(self, ticket: int, value: str, dst: Tier, tensor: Tensor) -> Tensor:
        self._tickets.check_new(ticket)
        binding = self._bindings.get(value) or Binding(Layout.of(tensor))
        outgoing = self._outgoing[value] = self._prepared(tensor, binding.layout)
        if binding.source is None:
            layout = binding.layout
            home = self._homes.fresh(value, dst, layout.dtype, layout.shape, layout.stride)
            spot = spot_of(self._homes, home)
            if value in self._gradients:
                self._facts.stored(home, outgoing.tensor)
                rest = Rest.of(self._homes, home)
                if rest is not None:
                    self._landing[value] = Landed(value, rest, layout)
        else:
            home = binding.source
            spot = self._shadows.spot(value)
        region = self._region(outgoing.tensor, binding.layout.nbytes)
        self._tickets.start(ticket, value, spot.store(self._copies, region, value))
        self._moved_to[value] = spot
        return home

    def release(self, value: str, after: int | None) -> None:
        if after is not None:
            self._tickets.finish(after, value)
            if value in self._landing:
                self._landed(self._landing.pop(value))
        offset = self._offsets.pop(value, None)
        if offset is not None and self._vacates:
            self._arena.vacate(offset, page_aligned(self._bindings[value].layout.nbytes))
        self._let_go(value)

    def stream(self, kernels: Kernels, native: NativeUpdates) -> bool:
        """Carry out the schedule natively where the engine is native: see ``streaming``.

        When this returns or raises, nothing is under way any more.
        """
        carrier = self._copies.carrier if isinstance(self._copies, Transfers) else None
        if not isinstance(carrier, NativeCarrier):
            return False
        if not can_translate(self._schedule):
            return False
        translator = Translator(self._schedule, self, native.calls, carrier.placed)
        carry_out(translator, carrier, self._ledger, kernels, native)
        return True

    def fetched(self, step: Fetch) -> tuple[Move, Tensor]:
        """Return the copy of a fetch, for ``stream``, and the tensor that it lands in."""
        assert step.offset is not None, f"{step.value} has no place in the arena"
        layout = self._bindings[step.value].layout
        region = self._slot(step.value, step.offset)
        self._offsets[step.value] = step.offset
        near = self._arena.tensor(step.offset, layout.dtype, layout.shape, layout.stride)
        return self._spot(step.value).fetching(region, step.value), near

    def offloaded(self, step: Offload, tensor: Tensor) -> Move:
        """Return the copy of an offload, for ``stream``."""
        spot = self._moved_to[step.value] = self._shadows.spot(step.value)
        region = self._region(tensor, self._bindings[step.value].layout.nbytes)
        return spot.storing(region, step.value)

    def vacated(self, value: str) -> tuple[int, int] | None:
        """Return the address and the bytes of a slot that its release gives back."""
        if not self._vacates:
            return None
        nbytes = page_aligned(self._bindings[value].layout.nbytes)
        return self._arena.address + self._offsets[value], nbytes

    def commit(self) -> tuple[Lease, ...]:
        """Let the updated homes have their new bytes; whoever asks bumps their versions.

        Returns the extents that they rested in before, which are free when nobody holds
        the leases.
        """
        self._tickets.settle()
        assert not self._tickets.failed, "an update that failed cannot be committed"
        return self._shadows.commit(self._moved_to.keys())

    def put_off(self) -> Callable[[], tuple[Lease, ...]]:
        """Return what will commit, once or never; it outlives ``close``.

        Until it is called the new bytes rest beside those of the homes, and they go with it.
        """
        self._tickets.settle()
        assert not self._tickets.failed, "an update that failed cannot be committed"
        shadows, self._shadows = self._shadows, Shadows(self._homes, {})
        return partial(shadows.commit, frozenset(self._moved_to))

    def close(self) -> None:
        try:
            self._tickets.settle()  # first: no memory may go while a copy touches it
        finally:
            for value in list(self._outgoing):
                self._let_go(value)
            self._offsets.clear()
            self._moved_to.clear()
            self._shadows.drop()

    def _slot(self, value: str, offset: int) -> Region:
        nbytes = self._bindings[value].layout.nbytes
        room = page_aligned(nbytes)
        assert offset + room <= self._arena.nbytes, f"%{value} does not fit into the arena"
        return Region(self._arena.address + offset, nbytes, room, self._arena)

    def _spot(self, value: str) -> Spot:
        """Return where the newest bytes of ``value`` rest."""
        if value in self._moved_to:
            return self._moved_to[value]
        source = self._bindings[value].source
        assert source is not None, f"%{value} is fetched but rests nowhere"
        return spot_of(self._homes, source)

    def _prepared(self, tensor: Tensor, layout: Layout) -> _Outgoing:
        """Return ``tensor`` in the layout that its home has."""
        assert (tensor.dtype, tuple(tensor.shape)) == (layout.dtype, layout.shape)
        if layout.holds(tensor):
            return _Outgoing(tensor, 0)
        self._ledger.hold(Tier.DEVICE, layout.nbytes)
        return _Outgoing(layout.copy_of(tensor), layout.nbytes)

    def _region(self, tensor: Tensor, nbytes: int) -> Region:
        """Return the memory of ``tensor``, with the rest of its slot if it has one."""
        address = tensor.data_ptr()
        in_arena = 0 <= address - self._arena.address < self._arena.nbytes
        return Region(address, nbytes, page_aligned(nbytes) if in_arena else nbytes, tensor)

    def _let_go(self, value: str) -> None:
        outgoing = self._outgoing.pop(value, None)
        if outgoing is not None and outgoing.extra_bytes:
            self._ledger.drop(Tier.DEVICE, outgoing.extra_bytes)


def _updated(schedule: Schedule, bindings: Mapping[str, Binding]) -> dict[str, Tensor]:
    """Return the sources whose bytes ``schedule`` replaces, by value name."""
    offloaded = [step.value for step in schedule.steps if isinstance(step, Offload)]
    sources = {value: bindings[value].source for value in offloaded if value in bindings}
    return {value: source for value, source in sources.items() if source is not None}
