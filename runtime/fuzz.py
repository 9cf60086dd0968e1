"""An executor that does everything a correct schedule must bear: late copies, spoilt memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping
from random import Random

import torch
from torch import Tensor

from zcompile.ir import Schedule, Tier, page_aligned
from zcompile.runtime.arena import Arena
from zcompile.runtime.binding import Binding, Layout
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.executor import Kernels, NativeUpdates
from zcompile.runtime.extents import Lease
from zcompile.runtime.late import LateCopies
from zcompile.runtime.machine import Machine

POISON = 0xFF
"""Every float made of these bytes is NaN, every signed integer is -1."""


class FuzzExecutor:
    """A ``CpuExecutor`` that shows what a schedule forgets to wait for.

    Copies land late and in any order, as ``seed`` has it.  Memory that nobody may read is
    poisoned: the slot of a fetch until it has landed and after its release, a fresh home
    until its bytes arrive, extents that an update has replaced, and the tensor of an
    offload after its release if the value is ``private``: nobody outside the schedule holds
    that tensor.  So a slot that the release has vacated takes its memory again.
    """

    def __init__(
        self,
        schedule: Schedule,
        bindings: Mapping[str, Binding],
        arena: Arena,
        machine: Machine,
        *,
        seed: int,
        private: Collection[str] = (),
    ) -> None:
        self._copies = machine.transfers
        self._late = LateCopies(machine.transfers, Random(seed))
        self._inner = CpuExecutor(schedule, bindings, arena, machine, self._late)
        self._bindings = bindings
        self._arena = arena
        self._private = frozenset(private)
        self._offsets: dict[str, int] = {}
        self._offloaded: dict[str, Tensor] = {}

    def prepare(self) -> None:
        """Implement ``CpuExecutor.prepare``."""
        self._inner.prepare()

    def fetch(self, ticket: int, value: str, src: Tier, offset: int) -> None:
        self._late.advance()
        self._inner.fetch(ticket, value, src, offset)
        self._offsets[value] = offset
        self._poison_slot(value)

    def wait(self, ticket: int, value: str) -> Tensor:
        self._late.advance()
        return self._inner.wait(ticket, value)

    def offload(self, ticket: int, value: str, dst: Tier, tensor: Tensor) -> Tensor:
        self._late.advance()
        home = self._inner.offload(ticket, value, dst, tensor)
        if value in self._private:
            self._offloaded[value] = tensor
        binding = self._bindings.get(value)
        if binding is None or binding.source is None:
            self._poison(home.data_ptr(), Layout.of(home).nbytes)
        return home

    def release(self, value: str, after: int | None) -> None:
        self._late.advance()
        self._inner.release(value, after)
        if value in self._offsets:
            self._poison_slot(value)
            del self._offsets[value]
        tensor = self._offloaded.pop(value, None)
        if tensor is not None:
            self._poison(tensor.data_ptr(), Layout.of(tensor).nbytes)

    def commit(self) -> tuple[Lease, ...]:
        """Implement ``CpuExecutor.commit``; poison what it replaced."""
        return self._poisoned(self._inner.commit())

    def put_off(self) -> Callable[[], tuple[Lease, ...]]:
        """Implement ``CpuExecutor.put_off``; what commits poisons what it replaced."""
        commit = self._inner.put_off()
        return lambda: self._poisoned(commit())

    def _poisoned(self, replaced: tuple[Lease, ...]) -> tuple[Lease, ...]:
        for lease in replaced:
            poison = torch.full((lease.nbytes,), POISON, dtype=torch.uint8, device="cpu")
            self._copies.write(
                lease, 0, poison.data_ptr(), lease.nbytes, lease.label, keep=poison
            ).wait()
        return replaced

    def stream(self, kernels: Kernels, native: NativeUpdates) -> bool:  # noqa: ARG002 (Executor has it)
        """Refuse: here every step is to be seen."""
        return False

    def close(self) -> None:
        self._inner.close()
        self._offsets.clear()
        self._offloaded.clear()

    def _poison_slot(self, value: str) -> None:
        room = page_aligned(self._bindings[value].layout.nbytes)
        self._poison(self._arena.address + self._offsets[value], room)

    @staticmethod
    def _poison(address: int, nbytes: int) -> None:
        ctypes.memset(address, POISON, nbytes)
