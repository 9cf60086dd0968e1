"""Copies that land late, in any order, drawn by chance."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from zcompile.runtime.extents import Lease
from zcompile.runtime.ledger import Channel
from zcompile.runtime.pending import Pending
from zcompile.runtime.transfers import Copies


class LateCopies:
    """Holds copies back until ``advance`` lets them happen, or until somebody waits for them.

    A channel starts its copies in order, but several threads carry them out: one that has
    landed says nothing about those before it.  So here each copy happens by itself, as a
    whole, within the call that lets it.  The same ``chance`` gives the same run, however
    the machine is loaded.
    """

    def __init__(self, copies: Copies, chance: Random) -> None:
        self._copies = copies
        self._chance = chance
        # Some channels let everything happen at once, some nothing that nobody waits for.
        self._haste = {channel: chance.choice((0.0, 0.3, 0.7, 1.0)) for channel in Channel}
        self._held: list[_Late] = []

    def advance(self) -> None:
        """Let some of the copies held back happen."""
        for late in self._held:
            if not late.landed and self._chance.random() < self._haste[late.channel]:
                late.happen()
        self._held = [late for late in self._held if not late.landed]

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
        late = _Late(channel, start)
        self._held.append(late)
        return late


class _Late:
    """A copy that is held back, or has happened."""

    def __init__(self, channel: Channel, start: Callable[[], Pending]) -> None:
        self.channel = channel
        self._start: Callable[[], Pending] | None = start
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
        if not self.landed:
            self.happen()
        if self._error is not None:
            raise self._error
