"""What carries copies out: natively, or by threads of Python."""

from __future__ import annotations

from typing import Protocol

from zcompile.runtime.blocks import Span
from zcompile.runtime.ledger import Channel
from zcompile.runtime.pending import Pending


class Carrier(Protocol):
    """The four channels behind ``Transfers``.  See ``Copies`` for the order of copies."""

    @property
    def buffer_bytes(self) -> int:
        """The most that its own I/O buffers can take on the device tier."""
        ...

    @property
    def buffered_because(self) -> str | None:
        """Why files are not read and written directly; ``None`` while they are."""
        ...

    def move(self, channel: Channel, span: Span, keep: object, *, urgent: bool) -> Pending:
        """Start moving ``span`` between the file and memory."""
        ...

    def copy(
        self, channel: Channel, source: int, destination: int, nbytes: int, keep: object
    ) -> Pending:
        """Start copying memory."""
        ...

    def retire(self) -> None:
        """Let the threads end once nothing is left, without waiting: safe in a finalizer."""
        ...

    def close(self) -> None:
        """Finish what has been started and end the threads."""
        ...
