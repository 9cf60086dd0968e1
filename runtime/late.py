"""Copies that start late: every order of landing that the channels allow, drawn by chance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from zcompile.runtime.extents import Lease
from zcompile.runtime.ledger import Channel
from zcompile.runtime.pending import Pending
from zcompile.runtime.transfers import Copies


class LateCopies:
    """Holds copies back until ``advance`` lets them happen, or until somebody waits.

    Each channel keeps its order.  A copy happens as a whole, within the call that lets it:
    the same ``chance`` gives the same run, however the machine is loaded.
    """

    def __init__(self, copies: Copies, chance: Random) -> None:
        self._copies = copies
        self._chance = chance
        self._held: dict[Channel, deque[_Late]] = {channel: deque() for channel in Channel}
        # Some channels let everything happen at once, some nothing before it is waited for.
        self._haste = {channel: chance.choice((0.0, 0.3, 0.7, 1.0)) for channel in Channel}

    def advance(self) -> None:
        """Let some of the copies held back happen."""
        for channel, held in self._held.items():
            while held and self._chance.random() < self._haste[channel]:
                held.popleft().happen()

    def read(
        self,
        lease: Lease,
        offset: int,
        address: int,
        nbytes: int,
        label: str,
        *,
        capacity: int | None = None,
        keep: object = None,
        urgent: bool = False,
    ) -> Pending:
        """Implement ``Copies.read``."""

        def start() -> Pending:
            return self._copies.read(
                lease, offset, address, nbytes, label, capacity=capacity, keep=keep, urgent=urgent
            )

        return self._hold(Channel.NVME_READ, start)

    def write(
        self,
        lease: Lease,
        offset: int,
        address: int,
        nbytes: int,
        label: str,
        *,
        capacity: int | None = None,
        keep: object = None,
        urgent: bool = False,
    ) -> Pending:
        """Implement ``Copies.write``."""

        def start() -> Pending:
            return self._copies.write(
                lease, offset, address, nbytes, label, capacity=capacity, keep=keep, urgent=urgent
            )

        return self._hold(Channel.NVME_WRITE, start)

    def copy_in(
        self, source: int, destination: int, nbytes: int, *, keep: object = None
    ) -> Pending:
        """Implement ``Copies.copy_in``."""
        return self._hold(
            Channel.H2D, lambda: self._copies.copy_in(source, destination, nbytes, keep=keep)
        )

    def copy_out(
        self, source: int, destination: int, nbytes: int, *, keep: object = None
    ) -> Pending:
        """Implement ``Copies.copy_out``."""
        return self._hold(
            Channel.D2H, lambda: self._copies.copy_out(source, destination, nbytes, keep=keep)
        )

    def _hold(self, channel: Channel, start: Callable[[], Pending]) -> Pending:
        held = self._held[channel]
        late = _Late(start, held)
        held.append(late)
        return late


class _Late:
    """A copy that is held back, or has happened."""

    def __init__(self, start: Callable[[], Pending], held: deque[_Late]) -> None:
        self._start: Callable[[], Pending] | None = start
        self._held = held
        self._error: Exception | None = None

    @property
    def landed(self) -> bool:
        return self._start is None

    def happen(self) -> None:
        """Start the copy and see it land; an error is kept for whoever waits."""
        start, self._start = self._start, None
        assert start is not None, "a copy happens once"
        try:
            start().wait()
        except Exception as error:
            self._error = error

    def wait(self) -> None:
        """Let every copy before this one happen, then this one."""
        while not self.landed:
            self._held.popleft().happen()
        if self._error is not None:
            raise self._error
