"""Runs a translated update on the engine of a machine, slice by slice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from zcompile.runtime.executor import Kernels
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.native_carrier import QUEUES, SLICE_SECONDS, NativeCarrier
from zcompile.runtime.native_stream import NativeStream, Progress, RequestFailed
from zcompile.runtime.pool import Pool
from zcompile.runtime.streaming import Translation


def carry_out(
    made: Translation,
    carrier: NativeCarrier,
    ledger: Ledger,
    pool: Pool | None,
    kernels: Kernels,
    ran: Callable[[str], object],
    *,
    is_exposed: bool = True,
) -> None:
    """Run ``made`` to its end; ``kernels`` are those that Python runs.

    ``ran`` is called with the name of each native update that has begun, also if it or what
    follows failed.  ``is_exposed`` says that computing waits for it.

    When this returns or raises, nothing is under way any more.  Raises ``StorageError`` for the
    first copy that failed.
    """
    stream = carrier.open_stream(made.program, pool)
    account = _Account(ledger, stream, is_exposed=is_exposed)
    returns = iter(made.returns)
    try:
        with closing(stream):
            while stream.progress.num_done < len(made.program.steps):
                returned = stream.run(SLICE_SECONDS)
                account.settle()
                if returned:
                    name, tensors = next(returns)
                    kernels[name](tensors)
    except RequestFailed as failed:
        label = made.label(failed.request, failed.result.offset)
        channel, _, _ = made.program.requests[failed.request]
        (of,) = (each for each, queue in QUEUES.items() if queue is channel)
        raise carrier.failure(of, failed.result, label) from None
    finally:
        account.settle()
        carrier.end_stream(stream)
        for name in made.native_updates_begun(stream.progress.num_done):
            ran(name)


class _Account:
    """Lets the ledger have what a stream has moved and waited for since the last time."""

    def __init__(self, ledger: Ledger, stream: NativeStream, *, is_exposed: bool) -> None:
        self._ledger = ledger
        self._is_exposed = is_exposed
        self._stream = stream
        self._seen = Progress(
            0, dict.fromkeys(QUEUES.values(), 0), dict.fromkeys(QUEUES.values(), 0.0)
        )

    def settle(self) -> None:
        now, before = self._stream.progress, self._seen
        self._seen = now
        for channel, queue in QUEUES.items():
            moved = now.moved_bytes[queue] - before.moved_bytes[queue]
            waited = now.waited_seconds[queue] - before.waited_seconds[queue]
            if moved:
                self._ledger.moved(channel, moved)
            if waited and self._is_exposed:
                self._ledger.exposed(channel, waited)
