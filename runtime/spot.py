"""The place where the bytes of a value rest, and how they get there and back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from zcompile.ir import Channel
from zcompile.runtime.blocks import Span
from zcompile.runtime.extents import Lease
from zcompile.runtime.homes import Homes
from zcompile.runtime.pending import Pending
from zcompile.runtime.transfers import Copies, read_span, write_span


@dataclass(frozen=True, slots=True)
class Region:
    """``nbytes`` of device memory at ``address``, of which ``owner`` keeps alive ``room`` bytes."""

    address: int
    nbytes: int
    room: int
    owner: object


@dataclass(frozen=True, slots=True)
class Move:
    """One copy that has not started: what ``channel`` has to move, and the owners of both ends.

    For copies of memory the offset of the span is the address of the source.
    """

    channel: Channel
    span: Span
    keep: object


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

    def fetching(self, region: Region, label: str) -> Move:
        """Return the copy that ``fetch`` would start."""
        span = read_span(self.lease, self.offset, region.address, region.nbytes, label, region.room)
        return Move(Channel.NVME_READ, span, (self.lease, region.owner))

    def storing(self, region: Region, label: str) -> Move:
        """Return the copy that ``store`` would start."""
        span = write_span(
            self.lease, self.offset, region.address, region.nbytes, label, region.room
        )
        return Move(Channel.NVME_WRITE, span, (self.lease, region.owner))


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

    def fetching(self, region: Region, label: str) -> Move:
        """Return the copy that ``fetch`` would start."""
        return self._move(Channel.H2D, self.address, region.address, region, label)

    def storing(self, region: Region, label: str) -> Move:
        """Return the copy that ``store`` would start."""
        return self._move(Channel.D2H, region.address, self.address, region, label)

    def _move(
        self, channel: Channel, source: int, destination: int, region: Region, label: str
    ) -> Move:
        nbytes = region.nbytes
        span = Span(source, destination, nbytes, nbytes, nbytes, label)
        return Move(channel, span, (self.owner, region.owner))


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
