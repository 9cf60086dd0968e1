"""The copies of one executor in flight, by ticket."""

from __future__ import annotations

from zcompile.runtime.pending import Pending


class Tickets:
    """Each ticket starts once and is waited for once, for the value it was started for."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._in_flight: dict[int, tuple[str, Pending]] = {}
        self.failed = False
        """Whether an error of a copy has been raised."""

    def start(self, ticket: int, value: str, pending: Pending) -> None:
        """Let ``ticket`` stand for a copy of ``value`` that was started."""
        self.check_new(ticket)
        self._taken.add(ticket)
        self._in_flight[ticket] = (value, pending)

    def check_new(self, ticket: int) -> None:
        """Raise ``AssertionError`` if ``ticket`` has been started."""
        assert ticket not in self._taken, f"t{ticket} was started before"

    def finish(self, ticket: int, value: str) -> None:
        """Block until the copy has landed; raise what went wrong with it."""
        assert ticket in self._in_flight, f"t{ticket} is not in flight"
        started_for, pending = self._in_flight[ticket]
        assert value == started_for, f"t{ticket} carries %{started_for}, not %{value}"
        try:
            pending.wait()
        except Exception:
            self.failed = True
            raise
        finally:
            if pending.landed:
                del self._in_flight[ticket]

    def settle(self) -> None:
        """Block until nothing is in flight.  Raise the first error that nobody has seen.

        Once an error was raised, those that followed are not.
        """
        first: Exception | None = None
        for ticket, (_, pending) in list(self._in_flight.items()):
            try:
                pending.wait()
            except Exception as error:
                first = first or error
            del self._in_flight[ticket]
        if first is not None and not self.failed:
            self.failed = True
            raise first
