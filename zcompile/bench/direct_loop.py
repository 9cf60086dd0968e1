"""The plainest fast way to move a file: threads that each read or write every so many blocks."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zcompile.runtime.blocks import cut
from zcompile.runtime.extents import Lease
from zcompile.runtime.syscalls import SystemCalls

NUM_THREADS = 4
BLOCK_BYTES = 8 << 20


class Block(NamedTuple):
    """``nbytes`` between ``offset`` of a file and memory at ``address``; all are whole pages."""

    fd: int
    offset: int
    address: int
    nbytes: int


def blocks_of(lease: Lease, address: int) -> Iterator[Block]:
    """Yield the blocks of an extent and of memory of its size.

    Their files are opened with O_DIRECT, and none refuses it.
    """
    for piece in lease.pieces():
        fd = lease.file.files[piece.file].direct_fd
        assert fd is not None, "the file system refuses O_DIRECT"
        for at, nbytes in cut(piece.nbytes, BLOCK_BYTES):
            yield Block(fd, piece.offset + at, address + piece.start + at, nbytes)


def direct_loop(blocks: Sequence[Block], *, write: bool) -> None:
    """Move ``blocks``, every fourth in a thread.

    What the engines are measured against: it needs memory for everything, order for nothing.
    Raises ``OSError`` where a thread met one.
    """
    calls = SystemCalls()
    call = calls.write if write else calls.read
    failed: list[OSError] = []

    def move(first: int) -> None:
        try:
            for fd, offset, address, nbytes in blocks[first::NUM_THREADS]:
                done = 0
                while done < nbytes:
                    moved = call(fd, address + done, nbytes - done, offset + done)
                    if moved == 0:
                        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
                    done += moved
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=move, args=(number,)) for number in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
