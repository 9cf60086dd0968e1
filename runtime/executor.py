"""The interface that every executor offers, and the loop that drives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, assert_never

from zcompile.ir import Compute, Fetch, Offload, Release, Schedule, Tier, Update, Wait

if TYPE_CHECKING:
    from torch import Tensor

    from zcompile.runtime.native_stream import UpdateCall
    from zcompile.runtime.pool import Pool


class Executor(Protocol):
    """One method a step.  An executor decides how, never when.

    What is in flight lives in the executor, by ticket.  One executor serves one
    invocation of one schedule and is closed after it, whether it ended well or not.
    """

    def fetch(self, ticket: int, value: str, src: Tier, offset: int) -> None:
        """Start copying ``value`` from its home into the arena at byte ``offset``."""
        ...

    def wait(self, ticket: int, value: str) -> Tensor:
        """Block until the fetch has landed; return the tensor over the arena copy."""
        ...

    def offload(self, ticket: int, value: str, dst: Tier, tensor: Tensor) -> Tensor:
        """Start copying ``tensor`` to the home of ``value``; return the tensor over that home.

        The executor keeps ``tensor`` alive until the release of ``value`` and must not
        keep the returned tensor: autograd adopts a gradient only if nobody else holds it.
        """
        ...

    def release(self, value: str, after: int | None) -> None:
        """Free the device copy of ``value`` once the offload ``after`` has landed."""
        ...

    def close(self) -> None:
        """Wait for whatever is in flight and let go of everything."""
        ...


class UpdatingExecutor(Executor, Protocol):
    """An executor that can also replace values at home, all of them or none."""

    def prepare(self) -> None:
        """Lease the space for every updated value, before the first step."""
        ...

    def commit(self) -> object:
        """Let the updated homes have their new bytes, after the last step."""
        ...

    def put_off(self) -> Callable[[], object]:
        """Return what will commit, if it is called, also after ``close``; after the last step."""
        ...

    def stream(self, kernels: Kernels, native: NativeUpdates) -> bool:
        """Carry out all steps without the interpreter between them, if that can be done.

        ``False``: it cannot, nothing has been done, and the steps are to be called one by one.
        """
        ...


class NativeUpdates(Protocol):
    """The updates of a schedule as calls of the native library."""

    @property
    def pool(self) -> Pool | None:
        """The threads that work on a call; ``None`` for the calling one alone."""
        ...

    @property
    def ahead(self) -> bool:
        """Whether nobody waits for it: it runs beside other computing."""
        ...

    def calls(self, bucket: str, tensors: Mapping[str, Tensor]) -> Sequence[UpdateCall] | None:
        """Return what updates ``bucket``, whose values are to be in ``tensors`` by then.

        ``None`` if only its kernel in Python can.
        """
        ...

    def ran(self, bucket: str) -> None:
        """Take note that the calls of ``bucket`` have run, at least in part."""
        ...


Kernels = Mapping[str, Callable[[Mapping[str, "Tensor"]], Mapping[str, "Tensor"]]]
"""By kernel name: from the tensors of its reads, by value name, to those of its writes."""


def execute(
    schedule: Schedule, on: Executor, kernels: Kernels, inputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Carry out ``schedule`` step by step; return the tensors of its outputs by name.

    Emitted FX code does the same without this loop; this loop is for schedules that have
    no graph behind them, such as updates and tests.
    """
    tensors: dict[str, Tensor] = dict(inputs)
    homes: dict[str, Tensor] = {}
    for step in schedule.steps:
        match step:
            case Compute(name, reads, _) | Update(name, reads, _):
                tensors.update(kernels[name]({value: tensors[value] for value in reads}))
            case Fetch(ticket, value, src, offset):
                assert offset is not None, f"{value} has no place in the arena"
                on.fetch(ticket, value, src, offset)
            case Wait(ticket, value):
                tensors[value] = on.wait(ticket, value)
            case Offload(ticket, value, dst):
                homes[value] = on.offload(ticket, value, dst, tensors[value])
            case Release(value, after):
                tensors.pop(value, None)
                on.release(value, after)
            case _:
                assert_never(step)
    tensors = {**inputs, **tensors, **homes}
    return {name: tensors[name] for name in schedule.outputs}
