"""The copies of one executor in flight, by ticket."""

from __future__ import annotations

from zcompile.runtime.pending import Pending


class Tickets:
    """Each ticket starts once and is waited for once, for the value it was started for."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._in_flight: dict[int, tuple[str, Pending]] = {}
        self.failed = False
        """Whether a copy has failed and somebody knows."""

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

        Once an error was raised, those that followed are not.  What comes from elsewhere, such
        as Ctrl-C or a signal that the user turns into an exception, waits until all is over:
        memory that a copy still touches must not go to anybody else.
        """
        first: Exception | None = None
        interrupt: BaseException | None = None
        for ticket, (_, pending) in list(self._in_flight.items()):
            error, between = _see_through(pending)
            first, interrupt = first or error, interrupt or between
            del self._in_flight[ticket]
        raised = None if self.failed else first
        self.failed = self.failed or first is not None
        if interrupt is not None:
            raise interrupt
        if raised is not None:
            raise raised


def _see_through(pending: Pending) -> tuple[Exception | None, BaseException | None]:
    """Wait until a copy is over; return its own error, and the first that came from elsewhere."""
    interrupt: BaseException | None = None
    while True:
        try:
            pending.wait()
        except Exception as error:
            if pending.landed:
                return error, interrupt
            interrupt = interrupt or error
        except BaseException as error:
            interrupt = interrupt or error
        else:
            return None, interrupt
