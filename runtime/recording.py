"""The executor that other executors are compared with: nothing is ever in flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from zcompile.ir import Fetch, Offload, Release, Step, Tier, Wait, render_step
from zcompile.runtime.binding import Binding, Layout
from zcompile.runtime.executor import Kernels, NativeUpdates
from zcompile.runtime.extents import Lease
from zcompile.runtime.tickets import Tickets


class RecordingExecutor:
    """Keeps each call as a line of schedule text in ``calls``; copies at once, in memory.

    A gradient rests where it was made.  The source of an updated value gets its new bytes
    with ``commit``.
    """

    def __init__(self, bindings: Mapping[str, Binding]) -> None:
        self.calls: list[str] = []
        self._bindings = bindings
        self._tickets = Tickets()
        self._newest: dict[str, Tensor] = {}

    def prepare(self) -> None:
        """Do nothing: an update needs no space here."""

    def fetch(self, ticket: int, value: str, src: Tier, offset: int) -> None:
        self._record(Fetch(ticket, value, src, offset))
        self._tickets.start(ticket, value, _Landed())

    def wait(self, ticket: int, value: str) -> Tensor:
        self._record(Wait(ticket, value))
        self._tickets.finish(ticket, value)
        newest = self._newest.get(value, self._bindings[value].source)
        assert newest is not None, f"%{value} is fetched but rests nowhere"
        return self._bindings[value].layout.copy_of(newest)

    def offload(self, ticket: int, value: str, dst: Tier, tensor: Tensor) -> Tensor:
        self._record(Offload(ticket, value, dst))
        self._tickets.start(ticket, value, _Landed())
        binding = self._bindings.get(value) or Binding(Layout.of(tensor))
        layout, source = binding.layout, binding.source
        self._newest[value] = layout.copy_of(tensor)
        if source is not None:
            return source
        return tensor if layout.holds(tensor) else layout.copy_of(tensor)

    def release(self, value: str, after: int | None) -> None:
        self._record(Release(value, after))
        if after is not None:
            self._tickets.finish(after, value)

    def commit(self) -> tuple[Lease, ...]:
        """Give the sources of updated values their new bytes; no extent changes."""
        return self.put_off()()

    def put_off(self) -> Callable[[], tuple[Lease, ...]]:
        """Return what does as ``commit``, also after ``close``."""
        newest = dict(self._newest)

        def commit() -> tuple[Lease, ...]:
            with torch.no_grad():
                for value, tensor in newest.items():
                    source = self._bindings[value].source
                    if source is not None:
                        source.copy_(tensor)
            return ()

        return commit

    def stream(self, kernels: Kernels, native: NativeUpdates) -> bool:  # noqa: ARG002 (Executor has it)
        """Refuse: here every step is to be seen."""
        return False

    def close(self) -> None:
        self._newest.clear()

    def _record(self, step: Step) -> None:
        self.calls.append(render_step(step))


class _Landed:
    """A copy that is over."""

    landed = True

    def wait(self) -> None:
        """Return at once."""
