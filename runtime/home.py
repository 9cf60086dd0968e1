"""The record of a home, and the table that finds it by address."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from zcompile.ir import Tier
from zcompile.runtime.extents import Lease
from zcompile.runtime.mapping import HomeMapping


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """The memory of one storage away from the device tier; ``nbytes`` is the storage's size."""

    label: str
    tier: Tier
    nbytes: int
    mapping: HomeMapping

    @property
    def address(self) -> int:
        """Where it begins in this process; never changes."""
        return self.mapping.address

    @property
    def lease(self) -> Lease | None:
        """The extent that holds it now; ``None`` on the host tier."""
        return self.mapping.lease

    @property
    def alive(self) -> bool:
        """Whether a tensor over it is left."""
        return self.mapping.buffer() is not None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor begins: ``byte_offset`` bytes into ``home``."""

    home: Home
    byte_offset: int


@dataclass(frozen=True, slots=True)
class HomeTable:
    """Homes by ascending address; replaced as a whole, so that readers need no lock.

    A dead home may linger until the next one is entered, but never in the way of a living
    one: it is known to be dead before its memory is unmapped, and unmapped before a new
    home can overlap it.
    """

    addresses: tuple[int, ...] = ()
    homes: tuple[Home, ...] = ()

    def with_homes(self, new: Iterable[Home]) -> HomeTable:
        """Return the table with ``new`` added."""
        addresses, homes = list(self.addresses), list(self.homes)
        for home in new:
            at = bisect_right(addresses, home.address)
            addresses.insert(at, home.address)
            homes.insert(at, home)
        return HomeTable(tuple(addresses), tuple(homes))

    def without(self, dead: Iterable[HomeMapping]) -> HomeTable:
        """Return the table without the homes of ``dead`` mappings."""
        gone = {id(mapping) for mapping in dead}
        homes = tuple(home for home in self.homes if id(home.mapping) not in gone)
        return HomeTable(tuple(home.address for home in homes), homes)

    def find(self, address: int) -> Place | None:
        """Return the place of ``address`` in a living home, if it is in one."""
        at = bisect_right(self.addresses, address) - 1
        if at < 0:
            return None
        home = self.homes[at]
        offset = address - home.address
        return Place(home, offset) if offset < home.nbytes and home.alive else None
