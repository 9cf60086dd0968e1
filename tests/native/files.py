"""Memory and files for tests of the native engine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from zcompile.runtime.arena import Arena
from zcompile.runtime.native import Native
from zcompile.runtime.native_io import (
    Direction,
    FilePair,
    IOChannel,
    IOKind,
    IOResult,
    IOSpan,
    NativeIO,
)

PAGE = 4096
SECONDS = 60.0


class Memory:
    """Page-aligned bytes at an address, zero at first."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._arena = Arena(nbytes)
        self.address = self._arena.address

    def put(self, offset: int, content: bytes) -> None:
        ctypes.memmove(self.address + offset, content, len(content))

    def get(self, offset: int = 0, nbytes: int | None = None) -> bytes:
        return ctypes.string_at(self.address + offset, self.nbytes if nbytes is None else nbytes)


@contextmanager
def opened(path: Path, nbytes: int = 0) -> Generator[FilePair, None, None]:
    """Open a file of ``nbytes`` zeros twice, once with O_DIRECT."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    if nbytes:
        os.posix_fallocate(fd, 0, nbytes)
    direct_fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        yield FilePair(fd, direct_fd)
    finally:
        os.close(fd)
        os.close(direct_fd)


def engine(
    native: Native,
    kind: IOKind,
    *,
    depth: int = 4,
    num_buffers: int = 2,
    block_bytes: int = 4 * PAGE,
    buffer_bytes: int = 2 * PAGE,
    buffered: bool = False,
    register_buffers: bool = False,
) -> NativeIO:
    """Return an engine with the same settings for both directions."""
    direction = Direction(depth, num_buffers, block_bytes, buffer_bytes)
    return NativeIO(
        native,
        kind,
        read=direction,
        write=direction,
        buffered=buffered,
        register_buffers=register_buffers,
    )


def carried_out(
    io: NativeIO,
    channel: IOChannel,
    spans: Sequence[IOSpan],
    files: Sequence[FilePair] = (),
) -> IOResult:
    """Submit a request, wait for it and return how it ended."""
    ticket = io.submit(channel, spans, files)
    assert io.wait(ticket, SECONDS)
    (result,) = io.reap()
    assert result.ticket == ticket
    return result


def whole(nbytes: int) -> int:
    """Return the bytes of the pages that hold ``nbytes``."""
    return -(-nbytes // PAGE) * PAGE
