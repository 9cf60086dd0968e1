"""The file of a run, or several striped as one, and leases on aligned pieces of it (extents).

Note [What the kernel forgets].  A page fault brings 2 MiB of a file into the page cache, as one
large page where the file system can.  A direct write to any part of these drops all of it, and
with it the kernel's knowledge that somebody had the other parts there, and may have written
them.  So before a schedule writes directly, what is in the cache is looked at and remembered.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from threading import Lock

from zcompile.ir import PAGE_BYTES, page_aligned
from zcompile.runtime import libc
from zcompile.runtime.backing import FULL, BackingFile
from zcompile.runtime.blocks import Span
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.freelist import FreeList
from zcompile.runtime.page_sums import SumTable, seen_ranges
from zcompile.runtime.stripes import STRIPE_BYTES, Piece, Stripes, share_of

SLAB_BYTES = 64 << 20
"""The file grows by at least this much, so that growing is rare."""


class Lease:
    """The right to one extent: ``nbytes`` at ``offset`` of the space that ``file`` is.

    ``capacity`` is the size in whole pages, at least one.  The extent is leased for as
    long as anybody holds this object, or until ``release``, whichever ends first.
    """

    __slots__ = (
        *("__weakref__", "_serial", "_touched", "capacity", "file", "label", "nbytes", "offset"),
    )

    def __init__(self, file: ExtentFile, serial: int, offset: int, nbytes: int, label: str) -> None:
        self.file = file
        self.offset = offset
        self.nbytes = nbytes
        self.capacity = page_count_bytes(nbytes)
        self.label = label
        self._serial = serial
        self._touched = False

    def pieces(self) -> Iterator[Piece]:
        """Yield where its pages lie, in order."""
        return self.file.stripes.pieces(self.offset, self.capacity)

    def untouched(self) -> bool:
        """Say whether nobody has had it in the page cache since it was written, for certain.

        To be asked of a lease that is watched.  Raises ``OSError`` where the kernel cannot tell.
        """
        files = self.file.files
        return not self._touched and not any(
            libc.pages_seen(files[each.file].fd, each.offset, each.nbytes) for each in self.pieces()
        )

    def watch(self) -> None:
        """Let what ``look`` sees of it be remembered: see Note [What the kernel forgets]."""
        self.file.watch(self._serial, self)

    def notice(self) -> None:
        """Remember for good if somebody has had it in the page cache."""
        self._touched = self._touched or not self.untouched()

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
    """One space per run, cut into extents that are leased and reused.

    It lies in a file, never sparse, in each of ``folders``; several are striped as one, each as far
    as its disk has room.  ``sums`` keeps a sum of every page that is written past the page cache.
    """

    def __init__(
        self,
        folders: RunFolder | Sequence[RunFolder],
        slab_bytes: int = SLAB_BYTES,
        *,
        stripe_bytes: int = STRIPE_BYTES,
        sums: bool = False,
    ) -> None:
        folders = (folders,) if isinstance(folders, RunFolder) else folders
        self._slab_bytes = page_aligned(slab_bytes)
        self._stripe_bytes = stripe_bytes
        self._pid = os.getpid()
        self._lock = Lock()
        self._free = FreeList()
        self._leased: dict[int, tuple[int, int]] = {}
        self._serial = 0
        self._given_back: deque[int] = deque()
        self._watched: dict[int, weakref.ref[Lease]] = {}
        self._full: set[int] = set()
        self.stripes = Stripes(PAGE_BYTES)
        """Which bytes of the space lie where."""
        self.sums = SumTable() if sums else None
        """The sums of its pages, if any are kept."""
        opened: list[BackingFile] = []
        try:
            opened += (BackingFile(folder) for folder in folders)
        except BaseException:
            _close_all([fd for each in opened for fd in each.descriptors()])
            raise
        self.files: tuple[BackingFile, ...] = tuple(opened)
        """What the space lies in."""
        fds = [fd for each in opened for fd in each.descriptors()]
        self._closing = weakref.finalize(self, _close_all, fds)
        self._closing.atexit = False  # threads may be writing still

    @property
    def size_bytes(self) -> int:
        """The size of all files, headers included."""
        return sum(each.end for each in self.files)

    @property
    def direct_refusal(self) -> str | None:
        """Why a file is not read and written directly; ``None`` if all are."""
        refusals = (
            each.direct_refusal if len(self.files) == 1 else f"{each.path}: {each.direct_refusal}"
            for each in self.files
            if each.direct_refusal
        )
        return next(refusals, None)

    @property
    def num_watched(self) -> int:
        """How many leases ``look`` looks at."""
        return len(self._watched)

    @property
    def leased_bytes(self) -> int:
        """The bytes of all extents on lease."""
        with self._lock:
            self._settle()
            return sum(capacity for _, capacity in self._leased.values())

    def lease(self, nbytes: int, label: str) -> Lease:
        """Lease a free extent for ``nbytes`` of the tensor ``label``, growing the files if need be.

        What the extent holds is undefined.  Raises ``StorageError`` when the disks are full
        or a file has vanished, and ``RuntimeError`` in a forked child: its parent leases
        from the same files.
        """
        (lease,) = self.lease_row([(nbytes, label)])
        return lease

    def lease_row(self, wanted: Sequence[tuple[int, str]]) -> list[Lease]:
        """Lease an extent for each of ``wanted``, bytes and label, as ``lease`` does.

        They lie side by side, in this order, if there is a free range for all of them; the files
        are not made larger for that.
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

    def watch(self, serial: int, lease: Lease) -> None:
        """Look after ``lease`` until it ends."""
        self._watched.setdefault(serial, weakref.ref(lease))

    def placed(self, span: Span) -> Sequence[Span]:
        """Return ``span`` of the space as spans of its files, in order."""
        if len(self.files) == 1:
            return (span,)
        pieces = self.stripes.pieces(span.offset, span.nbytes)
        return [span.part(each.start, each.nbytes, each.file, each.offset) for each in pieces]

    def sums_at(self, offset: int) -> int:
        """Return the address of the sums from byte ``offset`` of the space on; 0 without any."""
        return self.sums.at(offset) if self.sums else 0

    def direct_fault(self) -> str | None:
        """Try a direct read of each file; return what refuses it, ``None`` if nothing does."""
        with mmap.mmap(-1, PAGE_BYTES) as page:
            for each in self.files:
                try:
                    os.preadv(-1 if each.direct_fd is None else each.direct_fd, [page], 0)
                except OSError as error:
                    return f"{each.path}: {each.direct_refusal or error.strerror}"
        return None

    def sight_fault(self) -> str | None:
        """Return why nobody can tell what the page cache has had; ``None`` if the kernel can."""
        try:
            for each in self.files:
                libc.pages_seen(each.fd, 0, PAGE_BYTES)
        except OSError as error:
            return f"the kernel does not tell what its page cache has (cachestat: {error.strerror})"
        return None

    def look(self) -> None:
        """Take note of what is, or was, in the page cache, before a direct write hides it.

        Leases that are watched remember it.  Sums of those pages are unknown from here on.
        """
        if (self._watched or self.sums) and self.sight_fault() is None:
            for known in list(self._watched.values()):
                lease = known()
                if lease is not None:
                    lease.notice()
            self._forget_sums()

    def _forget_sums(self) -> None:
        if self.sums is None:
            return
        for number, file in enumerate(self.files):
            for start, nbytes in seen_ranges(file.fd, PAGE_BYTES, file.end):
                for there, length in self.stripes.ranges(number, start, nbytes):
                    self.sums.forget(there, length)

    def close(self) -> None:
        """Close the descriptors; mappings stay valid.  Nothing may be in flight."""
        self._closing()
        for each in self.files:
            each.forget()

    def _settle(self) -> None:
        while self._given_back:
            serial = self._given_back.popleft()
            self._watched.pop(serial, None)
            extent = self._leased.pop(serial, None)
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

    def _check_present(self, nbytes: int, label: str) -> None:
        for each in self.files:
            if code := each.fault():
                raise each.error("lease", code, each.end, nbytes, label)

    def _grow(self, capacity: int, label: str) -> None:
        """Make the space larger by what is missing of ``capacity``, in the files that have room."""
        missing = capacity - self._free.tail_bytes(self.stripes.end)
        while True:
            growing = [each for each in range(len(self.files)) if each not in self._full]
            failed = self._append(max(missing, self._slab_bytes), growing)
            if failed and failed[1] in FULL:  # there may be room for this one still
                failed = self._append(missing, growing)
            if not failed:
                return
            number, code, nbytes = failed
            if code in FULL and len(growing) > 1:
                self._full.add(number)
                continue
            self._full.clear()  # next time there may be room again
            file = self.files[number]
            raise file.error("allocate", code, file.end, nbytes, label)

    def _append(self, nbytes: int, growing: Sequence[int]) -> tuple[int, int, int] | None:
        """Make the space larger by at least ``nbytes``, shared out to files; ``None`` for success.

        Else the number of the file that could not grow, the errno, and by how much it was to grow.
        """
        stripe_bytes = self.stripes.stripe_bytes(self._stripe_bytes)
        share, stripe_bytes = share_of(nbytes, len(growing), stripe_bytes)
        ends = [(number, self.files[number].end) for number in growing]
        for at, number in enumerate(growing):
            if code := self.files[number].append(share):
                for grown in growing[:at]:
                    self.files[grown].cut_off(share)
                return number, code, share
        start = self.stripes.end
        grown_to = self.stripes.grown(share, stripe_bytes, ends)
        if self.sums:
            self.sums.grow(grown_to.end)
        self.stripes = grown_to
        self._free.give(start, self.stripes.end - start)
        return None


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
