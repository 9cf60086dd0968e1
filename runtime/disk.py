"""Moves single blocks between memory and the files of homes."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Self

from zcompile.ir import PAGE_BYTES, Tier, page_aligned
from zcompile.runtime import libc, page_sums
from zcompile.runtime.backing import BackingFile
from zcompile.runtime.blocks import Block, Route
from zcompile.runtime.copy_queue import Carry
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.syscalls import Syscalls


class Bounce:
    """A page-aligned buffer for memory that direct I/O cannot reach; made at first use."""

    def __init__(self, nbytes: int, ledger: Ledger) -> None:
        self._nbytes = nbytes
        self._ledger = ledger
        self._address: int | None = None

    def __enter__(self) -> Self:
        return self

    @property
    def address(self) -> int:
        """Where the buffer begins."""
        if self._address is None:
            self._address = libc.map_anonymous(self._nbytes)
            self._ledger.hold(Tier.DEVICE, self._nbytes)
        return self._address

    def __exit__(self, *_: object) -> None:
        if self._address is not None:
            libc.unmap(self._address, self._nbytes)
            self._ledger.drop(Tier.DEVICE, self._nbytes)
            self._address = None


class Disk:
    """Reads and writes blocks of the files of a space: whole, or with a ``StorageError``.

    A file system that refuses direct I/O only at the first call makes all buffered from there on.
    """

    def __init__(
        self, file: ExtentFile, ledger: Ledger, calls: Syscalls, *, buffered: bool
    ) -> None:
        self._buffered_because = "it was asked for" if buffered else None
        self._file = file
        self._ledger = ledger
        self._calls = calls

    @property
    def buffered_because(self) -> str | None:
        """Why not every file is read and written directly; ``None`` while all are."""
        return self._buffered_because or self._file.direct_refusal

    @property
    def needs_no_buffers(self) -> bool:
        """Whether nothing is read or written directly."""
        return bool(self._buffered_because) or all(
            each.direct_fd is None for each in self._file.files
        )

    @contextmanager
    def reader(self, bounce_bytes: int) -> Generator[Carry[Block], None, None]:
        """Give one thread what it reads blocks with."""
        with Bounce(bounce_bytes, self._ledger) as bounce:
            yield partial(self._read, bounce)

    @contextmanager
    def writer(self, bounce_bytes: int) -> Generator[Carry[Block], None, None]:
        """Give one thread what it writes blocks with."""
        with Bounce(bounce_bytes, self._ledger) as bounce:
            yield partial(self._write, bounce)

    def _read(self, bounce: Bounce, block: Block) -> None:
        match self._route(block):
            case Route.BUFFERED:
                self._fill(block, block.address, block.nbytes)
            case Route.DIRECT:
                self._fill(block, block.address, page_aligned(block.nbytes))
            case Route.BOUNCE:
                self._fill(block, bounce.address, page_aligned(block.nbytes))
                self._calls.copy(block.address, bounce.address, block.nbytes)

    def _write(self, bounce: Bounce, block: Block) -> None:
        match self._route(block):
            case Route.BUFFERED:
                self._put(block, block.address, block.nbytes)
            case Route.DIRECT:
                self._put(block, block.address, page_aligned(block.nbytes))
            case Route.BOUNCE:
                self._calls.copy(bounce.address, block.address, block.nbytes)
                # What an earlier block left in the rest of the page is not this tensor's.
                ctypes.memset(bounce.address + block.nbytes, 0, -block.nbytes % PAGE_BYTES)
                self._put(block, bounce.address, page_aligned(block.nbytes))

    def _route(self, block: Block) -> Route:
        direct = self._buffered_because is None and self._of(block).direct_fd is not None
        return block.route if direct else Route.BUFFERED

    def _of(self, block: Block) -> BackingFile:
        return self._file.files[block.file]

    def _fill(self, block: Block, address: int, nbytes: int) -> None:
        """Read all of ``nbytes``, and compare their sums if there are any."""
        self._move(Channel.NVME_READ, block, address, nbytes)
        if block.sums:
            fd = self._of(block).fd
            wrong = page_sums.wrong_page(block.sums, fd, block.offset, address, nbytes)
            if wrong is not None:
                place = (wrong, PAGE_BYTES, block.label)
                raise self._of(block).error("read", errno.EBADMSG, *place)

    def _put(self, block: Block, address: int, nbytes: int) -> None:
        """Write all of ``nbytes``, and store their sums if any are kept."""
        if block.sums:
            page_sums.forget(block.sums, block.offset, block.nbytes)
        self._move(Channel.NVME_WRITE, block, address, nbytes)
        if block.sums:
            page_sums.store(block.sums, block.offset, address, nbytes)

    def _move(self, channel: Channel, block: Block, address: int, nbytes: int) -> None:
        """Move all of ``nbytes``; what one call leaves over, the next ones move."""
        call = self._calls.read if channel is Channel.NVME_READ else self._calls.write
        done = 0
        while done < nbytes:
            fd = self._descriptor(block, done)
            try:
                moved = call(fd, address + done, nbytes - done, block.offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.EINVAL and fd == self._of(block).direct_fd:
                    self._buffered_because = "the file system refused a call with O_DIRECT: EINVAL"
                    continue
                raise self._error(channel, error.errno or errno.EIO, block) from error
            if moved == 0:  # the file has become shorter than the homes in it
                raise self._error(channel, errno.ENODATA, block)
            done += moved
        self._ledger.moved(channel, nbytes)

    def _descriptor(self, block: Block, done: int) -> int:
        """Return where the next call goes: a short one may have left half a page over."""
        file = self._of(block)
        is_direct = self._route(block) is not Route.BUFFERED and done % PAGE_BYTES == 0
        return file.direct_fd if is_direct and file.direct_fd is not None else file.fd

    def _error(self, channel: Channel, code: int, block: Block) -> StorageError:
        action = "read" if channel is Channel.NVME_READ else "write"
        return self._of(block).error(action, code, block.offset, block.nbytes, block.label)
