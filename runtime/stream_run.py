"""Runs an update on the engine of a machine, slice by slice."""

from __future__ import annotations

from contextlib import closing

from zcompile.runtime.executor import Kernels, NativeUpdates
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.native_carrier import QUEUES, SLICE_SECONDS, NativeCarrier
from zcompile.runtime.native_stream import NativeStream, Progress, RequestFailed, StepKind
from zcompile.runtime.streaming import Translation, Translator


def carry_out(
    translator: Translator,
    carrier: NativeCarrier,
    ledger: Ledger,
    kernels: Kernels,
    native: NativeUpdates,
) -> None:
    """Run what ``translator`` writes down to its end; ``kernels`` are those that Python runs.

    The first fetches are under way while the rest is written down.  ``native`` is told of each
    native update that has begun, also if it or what follows failed.  When this returns or
    raises, nothing is under way any more.  Raises ``StorageError`` for the first copy that failed.
    """
    made = translator.begin()
    stream = carrier.open_stream(made.program, native.pool)
    account = _Account(ledger, stream, is_exposed=not native.ahead)
    try:
        with closing(stream):
            if all(kind is StepKind.START for kind, _ in made.program.steps):
                stream.run(SLICE_SECONDS)
            stream.extend(translator.finish().program)
            _run(made, stream, account, kernels)
    except RequestFailed as failed:
        result = failed.result
        label = made.label(failed.request, result.file, result.offset, carrier.placed)
        channel, _, _ = made.program.requests[failed.request]
        (of,) = (each for each, queue in QUEUES.items() if queue is channel)
        raise carrier.failure(of, result, label) from None
    finally:
        account.settle()
        carrier.end_stream(stream)
        for name in made.native_updates_begun(stream.progress.num_done):
            native.ran(name)


def _run(made: Translation, stream: NativeStream, account: _Account, kernels: Kernels) -> None:
    returns = iter(made.returns)
    while stream.progress.num_done < len(made.program.steps):
        returned = stream.run(SLICE_SECONDS)
        account.settle()
        if returned:
            name, tensors = next(returns)
            kernels[name](tensors)


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
