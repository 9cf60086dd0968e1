"""The calls that move bytes, behind a seam through which tests inject faults."""

from __future__ import annotations

import ctypes
import os
from typing import Protocol


class Syscalls(Protocol):
    """Moves bytes between memory, given by address, and files, given by descriptor.

    A read or write may move fewer bytes than asked and says how many; it raises
    ``OSError`` when it moves none, except that a read at the end of a file returns 0.
    """

    def read(self, fd: int, address: int, nbytes: int, offset: int) -> int:
        """Read up to ``nbytes`` at ``offset`` of the file into memory."""
        ...

    def write(self, fd: int, address: int, nbytes: int, offset: int) -> int:
        """Write up to ``nbytes`` from memory at ``offset`` of the file."""
        ...

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        """Copy ``nbytes`` from memory to memory."""
        ...


class SystemCalls:
    """The real calls.  Each lets other Python threads run while it moves bytes."""

    def read(self, fd: int, address: int, nbytes: int, offset: int) -> int:
        return os.preadv(fd, [_memory(address, nbytes)], offset)

    def write(self, fd: int, address: int, nbytes: int, offset: int) -> int:
        return os.pwritev(fd, [_memory(address, nbytes)], offset)

    def copy(self, destination: int, source: int, nbytes: int) -> None:
        ctypes.memmove(destination, source, nbytes)


def _memory(address: int, nbytes: int) -> ctypes.Array[ctypes.c_char]:
    """Return a writable buffer over memory that the caller keeps alive."""
    return (ctypes.c_char * nbytes).from_address(address)
