"""Mapped memory that a home rests in: an extent of a file, or anonymous memory.

Note [Stores beside direct writes].  A page fault reads 2 MiB, as one large page of the
cache where the file system can.  A store through a mapping, while a direct write to the
same 2 MiB of the file is under way, may then keep a stale copy of what is being written.
Code that may store runs only between schedules, and a schedule ends with no write under way.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Callable
from functools import partial
from threading import Lock

from zcompile.runtime import libc
from zcompile.runtime.buffer import Buffer, buffer_over
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import Lease, page_count_bytes
from zcompile.runtime.reservation import HUGE_PAGE_BYTES, Reservation

LEAST_RESERVATION_BYTES = 1 << 30


class HomeMapping:
    """``nbytes`` of mapped memory, whole pages, at ``address`` for as long as its buffer lives.

    ``apart`` says that it shows another extent than the one it was made for: the kernel then
    cannot join it with the mappings beside it, and keeps an entry for it alone.

    The mapping does not keep itself: the ``Buffer`` that comes with it does, and the
    tensors over that.  When the last has gone, the memory is unmapped and ``lease``, the
    extent behind it (``None`` for anonymous memory), is let go.
    """

    __slots__ = ("_buffer", "_unmap", "address", "apart", "lease", "nbytes")

    def __init__(
        self, address: int, nbytes: int, lease: Lease | None, unmap: Callable[[int, int], None]
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.lease = lease
        self.apart = False
        self._unmap = unmap
        self._buffer: Callable[[], Buffer | None] = lambda: None

    def open(self, on_death: Callable[[HomeMapping], None]) -> Buffer:
        """Return the buffer over the memory; to be called once.

        ``on_death`` is called just before the memory is unmapped, from a finalizer.
        """
        buffer = buffer_over(self.address, self.nbytes, partial(self._end, on_death))
        self._buffer = weakref.ref(buffer)
        return buffer

    def buffer(self) -> Buffer | None:
        """Return what keeps the memory mapped while held; ``None`` once it has gone."""
        return self._buffer()

    def remap(self, lease: Lease) -> None:
        """Show the extent of ``lease`` at the same address, and let go of the extent before.

        Tensors over the memory stay and see the new bytes.  The size must be the same.
        """
        kept = self._buffer()  # else the addresses could become somebody else's meanwhile
        assert kept is not None, f"no tensor is left over the memory of {lease.label}"
        assert lease.capacity == self.nbytes, f"{lease} does not fit {self.nbytes} B"
        before = self.lease
        try:
            _map_at(self.address, lease)
        except StorageError:
            if before is not None:  # of several pieces some may show the other extent already
                _map_at(self.address, before)
            raise
        self.lease = lease
        self.apart = True

    def _end(self, on_death: Callable[[HomeMapping], None]) -> None:
        on_death(self)
        self._unmap(self.address, self.nbytes)
        self.lease = None


class FileMapper:
    """Maps extents, each to the address that its offset has in a reservation.

    Where another mapping is in the way (it was made for the same extent and shows another
    one now), the next reservation is used.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._reservations: tuple[Reservation, ...] = ()

    def map(self, lease: Lease) -> HomeMapping:
        """Map the extent of ``lease``, shared: stores reach the file, direct reads see them."""
        with self._lock:
            reservation, address = self._place(lease)
        mapping = HomeMapping(address, lease.capacity, lease, reservation.vacate)
        try:
            _map_at(address, lease)
        except StorageError:
            reservation.vacate(address, lease.capacity)
            raise
        return mapping

    def trim(self) -> None:
        """Drop all resident pages of all mappings; the file keeps their bytes."""
        for reservation in self._reservations:
            reservation.trim()

    def _place(self, lease: Lease) -> tuple[Reservation, int]:
        for reservation in self._reservations:
            address = reservation.take(lease.offset, lease.capacity)
            if address is not None:
                return reservation, address
        end = lease.offset + lease.capacity
        nbytes = max(LEAST_RESERVATION_BYTES, 2 * -(-end // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES)
        try:
            reservation = Reservation(nbytes)
        except OSError as error:
            code = error.errno or errno.EIO
            file = lease.file.files[0]
            failure = file.error(
                "reserve addresses for", code, lease.offset, lease.nbytes, lease.label
            )
            raise failure from error
        self._reservations = (*self._reservations, reservation)
        address = reservation.take(lease.offset, lease.capacity)
        assert address is not None
        return reservation, address


def map_host(nbytes: int) -> HomeMapping:
    """Map fresh anonymous memory of exactly the pages that ``nbytes`` need."""
    capacity = page_count_bytes(nbytes)
    return HomeMapping(libc.map_anonymous(capacity), capacity, None, libc.unmap)


def _map_at(address: int, lease: Lease) -> None:
    """Map the pages of ``lease`` in place of what is at ``address``, piece by piece."""
    for piece in lease.pieces():
        file = lease.file.files[piece.file]
        try:
            libc.map_file_at(address + piece.start, file.fd, piece.offset, piece.nbytes)
        except OSError as error:
            code = error.errno or errno.EIO
            raise file.error("map", code, piece.offset, lease.nbytes, lease.label) from error
    _advise(address, lease.capacity)


def _advise(address: int, nbytes: int) -> None:
    """Make a page fault read 2 MiB.

    By default it reads as far ahead as the device is set to, 8 MiB for example; with
    ``RANDOM`` alone 4 KiB, and a walk is then 30 times slower.  A kernel without huge pages
    refuses, and keeps the default.
    """
    try:
        libc.advise(address, nbytes, libc.Advice.HUGEPAGE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    else:
        libc.advise(address, nbytes, libc.Advice.RANDOM)
