"""The file of a run, and leases on aligned pieces of it (extents)."""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from zcompile.ir import PAGE_BYTES, page_aligned
from zcompile.runtime.errors import StorageError
from zcompile.runtime.folder import EXTENTS_NAME, RunFolder
from zcompile.runtime.freelist import FreeList

SLAB_BYTES = 64 << 20
"""The file grows by at least this much, so that growing is rare."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Lease:
    """The right to one extent: ``nbytes`` at ``offset`` of ``file``.

    ``capacity`` is the size in whole pages, at least one.  The extent is leased for as
    long as anybody holds this object, or until ``release``, whichever ends first.
    """

    __slots__ = ("__weakref__", "_serial", "capacity", "file", "label", "nbytes", "offset")

    def __init__(self, file: ExtentFile, serial: int, offset: int, nbytes: int, label: str) -> None:
        self.file = file
        self.offset = offset
        self.nbytes = nbytes
        self.capacity = page_count_bytes(nbytes)
        self.label = label
        self._serial = serial

    def release(self) -> None:
        """Give the extent back; again is harmless.  Takes no lock: finalizers may call it."""
        self.file.give_back(self._serial)

    def __del__(self) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"Lease({self.label!r}, {self.nbytes} B at {self.offset})"


def page_count_bytes(nbytes: int) -> int:
    """Return the bytes of the pages that hold ``nbytes``; an extent has at least one page."""
    return page_aligned(max(nbytes, 1))


class ExtentFile:
    """One file per run, never sparse, cut into extents that are leased and reused.

    The first page is a header in JSON; extents follow.  ``fd`` goes through the page
    cache; ``direct_fd`` bypasses it, or is ``None`` where the file system refuses, for
    the reason in ``direct_refusal``.
    """

    def __init__(self, folder: RunFolder, slab_bytes: int = SLAB_BYTES) -> None:
        self.folder = folder
        self.path: Path = folder.path / EXTENTS_NAME
        self.direct_refusal: str | None = None
        self._slab_bytes = page_aligned(slab_bytes)
        self._pid = os.getpid()
        self._lock = Lock()
        self._free = FreeList()
        self._end = PAGE_BYTES
        self._leased: dict[int, tuple[int, int]] = {}
        self._serial = 0
        self._given_back: deque[int] = deque()
        self.fd = self._create()
        self.direct_fd = self._open_direct()
        fds = [fd for fd in (self.fd, self.direct_fd) if fd is not None]
        self._closing = weakref.finalize(self, _close_all, fds)
        self._closing.atexit = False  # threads may be writing still

    @property
    def size_bytes(self) -> int:
        """The size of the file, header included."""
        return self._end

    @property
    def leased_bytes(self) -> int:
        """The bytes of all extents on lease."""
        with self._lock:
            self._settle()
            return sum(capacity for _, capacity in self._leased.values())

    def lease(self, nbytes: int, label: str) -> Lease:
        """Lease a free extent for ``nbytes`` of the tensor ``label``, growing the file if need be.

        What the extent holds is undefined.  Raises ``StorageError`` when the disk is full
        or the file has vanished, and ``RuntimeError`` in a forked child: its parent leases
        from the same file.
        """
        (lease,) = self.lease_row([(nbytes, label)])
        return lease

    def lease_row(self, wanted: Sequence[tuple[int, str]]) -> list[Lease]:
        """Lease an extent for each of ``wanted``, bytes and label, as ``lease`` does.

        They lie side by side, in this order, if there is a free range for all of them; the file
        is not made larger for that.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"process {os.getpid()} was forked from process {self._pid} and cannot move "
                f"{wanted[0][1]} to the parent's file: compile the model in the process that "
                "trains it"
            )
        capacities = [page_count_bytes(nbytes) for nbytes, _ in wanted]
        leases: list[Lease] = []
        with self._lock:
            self._settle()
            self._check_present(sum(capacities), wanted[0][1])
            row = self._free.take(sum(capacities)) if len(wanted) > 1 else None
            for (nbytes, label), capacity in zip(wanted, capacities, strict=True):
                if row is None:
                    offset = self._found(capacity, label)
                else:
                    offset, row = row, row + capacity
                self._serial += 1
                self._leased[self._serial] = (offset, capacity)
                leases.append(Lease(self, self._serial, offset, nbytes, label))
        return leases

    def give_back(self, serial: int) -> None:
        """End the lease ``serial`` as soon as the next one is asked for; takes no lock."""
        self._given_back.append(serial)

    def close(self) -> None:
        """Close the descriptors; mappings stay valid.  Nothing may be in flight."""
        self._closing()
        self.fd = -1
        self.direct_fd = None

    def _settle(self) -> None:
        while self._given_back:
            extent = self._leased.pop(self._given_back.popleft(), None)
            if extent is not None:
                self._free.give(*extent)

    def _found(self, capacity: int, label: str) -> int:
        """Return the offset of a free extent, taken from the list."""
        offset = self._free.take(capacity)
        if offset is None:
            self._grow(capacity, label)
            offset = self._free.take(capacity)
            assert offset is not None
        return offset

    def _check_present(self, capacity: int, label: str) -> None:
        if self.fd == -1:
            raise self._error("lease", errno.EBADF, self._end, capacity, label)
        if os.fstat(self.fd).st_nlink == 0:
            raise self._error("lease", errno.ENOENT, self._end, capacity, label)

    def _grow(self, capacity: int, label: str) -> None:
        missing = capacity - self._free.tail_bytes(self._end)
        code = self._append(max(missing, self._slab_bytes))
        if code in _FULL:  # a nearly full disk may have room for this one still
            code = self._append(missing)
        if code:
            raise self._error("allocate", code, self._end, missing, label)

    def _append(self, nbytes: int) -> int:
        """Allocate ``nbytes`` at the end of the file; return the errno, 0 for success."""
        try:
            os.posix_fallocate(self.fd, self._end, nbytes)
        except OSError as error:
            # What was allocated before the disk was full would otherwise stay taken.
            os.ftruncate(self.fd, self._end)
            return error.errno or errno.EIO
        self._free.give(self._end, nbytes)
        self._end += nbytes
        return 0

    def _create(self) -> int:
        header = {
            "magic": "zinf extents",
            "version": 1,
            "page_bytes": PAGE_BYTES,
            "payload_start": PAGE_BYTES,
        }
        fd = -1
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.posix_fallocate(fd, 0, PAGE_BYTES)
            os.pwrite(fd, json.dumps(header).encode().ljust(PAGE_BYTES), 0)
        except OSError as error:
            if fd != -1:
                os.close(fd)
            code = error.errno or errno.EIO
            raise self._error("create", code, 0, PAGE_BYTES, "the header") from error
        return fd

    def _open_direct(self) -> int | None:
        try:
            return os.open(self.path, os.O_RDWR | os.O_DIRECT)
        except OSError as error:
            self.direct_refusal = f"the file system refuses O_DIRECT: {error.strerror}"
            return None

    def _error(self, action: str, code: int, offset: int, nbytes: int, label: str) -> StorageError:
        return StorageError.during(
            action, code, file=self.path, offset=offset, nbytes=nbytes, label=label
        )


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
