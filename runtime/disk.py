"""Moves single blocks between memory and the file of homes."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Self

from zcompile.ir import PAGE_BYTES, Tier, page_aligned
from zcompile.runtime import libc
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
    """Reads and writes blocks of one file: whole, or with a ``StorageError``.

    ``buffered_because`` says why direct I/O is not used, ``None`` while it is.  A file
    system that refuses it only at the first call makes it buffered from there on.
    """

    def __init__(
        self, file: ExtentFile, ledger: Ledger, calls: Syscalls, *, buffered: bool
    ) -> None:
        self.buffered_because = "it was asked for" if buffered else file.direct_refusal
        self._file = file
        self._ledger = ledger
        self._calls = calls

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
                self._move(Channel.NVME_READ, block, block.address, block.nbytes)
            case Route.DIRECT:
                self._move(Channel.NVME_READ, block, block.address, page_aligned(block.nbytes))
            case Route.BOUNCE:
                self._move(Channel.NVME_READ, block, bounce.address, page_aligned(block.nbytes))
                self._calls.copy(block.address, bounce.address, block.nbytes)

    def _write(self, bounce: Bounce, block: Block) -> None:
        match self._route(block):
            case Route.BUFFERED:
                self._move(Channel.NVME_WRITE, block, block.address, block.nbytes)
            case Route.DIRECT:
                self._move(Channel.NVME_WRITE, block, block.address, page_aligned(block.nbytes))
            case Route.BOUNCE:
                self._calls.copy(bounce.address, block.address, block.nbytes)
                # What an earlier block left in the rest of the page is not this tensor's.
                ctypes.memset(bounce.address + block.nbytes, 0, -block.nbytes % PAGE_BYTES)
                self._move(Channel.NVME_WRITE, block, bounce.address, page_aligned(block.nbytes))

    def _route(self, block: Block) -> Route:
        return block.route if self.buffered_because is None else Route.BUFFERED

    def _move(self, channel: Channel, block: Block, address: int, nbytes: int) -> None:
        """Move all of ``nbytes``; what one call leaves over, the next ones move."""
        call = self._calls.read if channel is Channel.NVME_READ else self._calls.write
        done = 0
        while done < nbytes:
            fd = self._descriptor(block.route, done)
            try:
                moved = call(fd, address + done, nbytes - done, block.offset + done)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.EINVAL and fd == self._file.direct_fd:
                    self.buffered_because = "the file system refused a call with O_DIRECT: EINVAL"
                    continue
                raise self._error(channel, error.errno or errno.EIO, block) from error
            if moved == 0:  # the file has become shorter than the homes in it
                raise self._error(channel, errno.ENODATA, block)
            done += moved
        self._ledger.moved(channel, nbytes)

    def _descriptor(self, route: Route, done: int) -> int:
        """Return where the next call goes: a short one may have left half a page over."""
        direct_fd = self._file.direct_fd
        if self.buffered_because or route is Route.BUFFERED or done % PAGE_BYTES or not direct_fd:
            return self._file.fd
        return direct_fd

    def _error(self, channel: Channel, code: int, block: Block) -> StorageError:
        return StorageError.during(
            "read" if channel is Channel.NVME_READ else "write",
            code,
            file=self._file.path,
            offset=block.offset,
            nbytes=block.nbytes,
            label=block.label,
        )
