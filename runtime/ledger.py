"""The account of bytes held, bytes moved and time spent waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Hashable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from types import MappingProxyType
from typing import TypeVar

from zcompile.ir import Channel, Tier

__all__ = ["Channel", "Key", "Ledger", "Number", "Snapshot"]

Key = TypeVar("Key", bound=Hashable)
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a ledger held and had counted at one moment.

    ``held_bytes`` and ``peak_bytes`` are by tier, ``moved_bytes`` and ``exposed_seconds``
    by channel.  ``eager_bytes`` is what code outside the schedules touched in homes.
    """

    held_bytes: Mapping[Tier, int]
    peak_bytes: Mapping[Tier, int]
    moved_bytes: Mapping[Channel, int]
    exposed_seconds: Mapping[Channel, float]
    eager_bytes: int

    def since(self, earlier: Snapshot) -> Snapshot:
        """Return what was counted after ``earlier``; held and peak bytes stay as they are here."""
        return replace(
            self,
            moved_bytes=_minus(self.moved_bytes, earlier.moved_bytes),
            exposed_seconds=_minus(self.exposed_seconds, earlier.exposed_seconds),
            eager_bytes=self.eager_bytes - earlier.eager_bytes,
        )


class Ledger:
    """Counts from any thread; read through frozen snapshots.

    ``drop`` takes no lock, so that finalizers may call it: the garbage collector can run
    one in the middle of any other method, on the same thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._dropped: deque[tuple[Tier, int]] = deque()
        self._held = dict.fromkeys(Tier, 0)
        self._peak = dict.fromkeys(Tier, 0)
        self._lap_peak = dict.fromkeys(Tier, 0)
        self._moved = dict.fromkeys(Channel, 0)
        self._exposed = dict.fromkeys(Channel, 0.0)
        self._eager_bytes = 0
        self._lap_start = self._read(self._peak)

    def hold(self, tier: Tier, nbytes: int) -> None:
        """Count ``nbytes`` more as held on ``tier``."""
        with self._lock:
            self._settle()
            held = self._held[tier] = self._held[tier] + nbytes
            self._peak[tier] = max(self._peak[tier], held)
            self._lap_peak[tier] = max(self._lap_peak[tier], held)

    def drop(self, tier: Tier, nbytes: int) -> None:
        """Count ``nbytes`` less as held on ``tier``; safe in a finalizer."""
        self._dropped.append((tier, nbytes))

    @contextmanager
    def holding(self, tier: Tier, nbytes: int) -> Generator[None, None, None]:
        """Count ``nbytes`` more as held on ``tier`` for as long as this lasts."""
        self.hold(tier, nbytes)
        try:
            yield
        finally:
            self.drop(tier, nbytes)

    def moved(self, channel: Channel, nbytes: int) -> None:
        """Count ``nbytes`` as copied over ``channel``."""
        with self._lock:
            self._moved[channel] += nbytes

    def exposed(self, channel: Channel, seconds: float) -> None:
        """Count ``seconds`` for which computing waited for ``channel``."""
        with self._lock:
            self._exposed[channel] += seconds

    def eager(self, nbytes: int) -> None:
        """Count ``nbytes`` of homes as touched by code outside the schedules."""
        with self._lock:
            self._eager_bytes += nbytes

    def snapshot(self) -> Snapshot:
        """Return what is held now and what was counted in all."""
        with self._lock:
            self._settle()
            return self._read(self._peak)

    def lap(self) -> Snapshot:
        """Return what was counted since the last lap, with the peaks within it; start the next."""
        with self._lock:
            self._settle()
            now = self._read(self._lap_peak)
            lap = now.since(self._lap_start)
            self._lap_start = now
            self._lap_peak = dict(self._held)
            return lap

    def _settle(self) -> None:
        while self._dropped:
            tier, nbytes = self._dropped.popleft()
            self._held[tier] -= nbytes

    def _read(self, peak: Mapping[Tier, int]) -> Snapshot:
        return Snapshot(
            held_bytes=MappingProxyType(dict(self._held)),
            peak_bytes=MappingProxyType(dict(peak)),
            moved_bytes=MappingProxyType(dict(self._moved)),
            exposed_seconds=MappingProxyType(dict(self._exposed)),
            eager_bytes=self._eager_bytes,
        )


def _minus(later: Mapping[Key, Number], earlier: Mapping[Key, Number]) -> Mapping[Key, Number]:
    return MappingProxyType({key: later[key] - earlier[key] for key in later})
