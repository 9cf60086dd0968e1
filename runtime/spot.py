"""The place where the bytes of a value rest, and how they get there and back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from zcompile.runtime.extents import Lease
from zcompile.runtime.homes import Homes
from zcompile.runtime.pending import Pending
from zcompile.runtime.transfers import Copies


@dataclass(frozen=True, slots=True)
class Region:
    """``nbytes`` of device memory at ``address``, of which ``owner`` keeps alive ``room`` bytes."""

    address: int
    nbytes: int
    room: int
    owner: object


@dataclass(frozen=True, slots=True)
class InExtent:
    """Bytes that begin ``offset`` bytes into the extent of ``lease``."""

    lease: Lease
    offset: int

    def fetch(self, copies: Copies, region: Region, label: str) -> Pending:
        """Start copying them to ``region``."""
        return copies.read(
            self.lease,
            self.offset,
            region.address,
            region.nbytes,
            label,
            capacity=region.room,
            keep=region.owner,
        )

    def store(self, copies: Copies, region: Region, label: str) -> Pending:
        """Start replacing them by those of ``region``."""
        return copies.write(
            self.lease,
            self.offset,
            region.address,
            region.nbytes,
            label,
            capacity=region.room,
            keep=region.owner,
        )


@dataclass(frozen=True, slots=True)
class InMemory:
    """Bytes at ``address`` of memory that ``owner`` keeps alive."""

    address: int
    owner: object

    def fetch(self, copies: Copies, region: Region, _label: str) -> Pending:
        """Start copying them to ``region``."""
        keep = (self.owner, region.owner)
        return copies.copy_in(self.address, region.address, region.nbytes, keep=keep)

    def store(self, copies: Copies, region: Region, _label: str) -> Pending:
        """Start replacing them by those of ``region``."""
        keep = (self.owner, region.owner)
        return copies.copy_out(region.address, self.address, region.nbytes, keep=keep)


Spot = InExtent | InMemory


def spot_of(homes: Homes, tensor: Tensor) -> Spot:
    """Return where the bytes of ``tensor`` rest.

    The spot keeps the memory of a home alive without holding ``tensor``, which autograd
    adopts only if nobody else holds it.  Memory of any other kind is kept through ``tensor``.
    """
    place = homes.find(tensor)
    if place is None:
        return InMemory(tensor.data_ptr(), tensor if tensor.numel() else None)
    lease = place.home.lease
    if lease is None:
        return InMemory(tensor.data_ptr(), place.home.mapping.buffer())
    return InExtent(lease, place.byte_offset)
