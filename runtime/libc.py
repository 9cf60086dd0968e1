"""The calls into the C library that Python does not offer; the only such place.

Every function raises ``OSError`` with the errno of the call.  None holds the interpreter
lock while the kernel works.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from enum import IntEnum

_LIBC = ctypes.CDLL(None, use_errno=True)

_MMAP = _LIBC.mmap
_MMAP.restype = ctypes.c_void_p
_MMAP.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
_MUNMAP = _LIBC.munmap
_MUNMAP.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MADVISE = _LIBC.madvise
_MADVISE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MALLOPT = _LIBC.mallopt
_MALLOPT.argtypes = [ctypes.c_int, ctypes.c_int]
_MALLOC_TRIM = _LIBC.malloc_trim
_MALLOC_TRIM.argtypes = [ctypes.c_size_t]

_SYSCALL = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long
_SYSCALL.argtypes = [
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint,
]
_CACHESTAT = 451

_PROT_NONE = 0
_MAP_FIXED = 0x10
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MAP_NORESERVE = 0x4000
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_MAP_FAILED = ctypes.c_void_p(-1).value


class Advice(IntEnum):
    """What to tell the kernel about a range of memory."""

    NORMAL = mmap.MADV_NORMAL
    RANDOM = mmap.MADV_RANDOM
    DONTNEED = mmap.MADV_DONTNEED
    HUGEPAGE = mmap.MADV_HUGEPAGE
    NOHUGEPAGE = mmap.MADV_NOHUGEPAGE


def map_anonymous(nbytes: int) -> int:
    """Return the address of ``nbytes`` of fresh zeroed private memory."""
    return _map(None, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)


def map_anonymous_at(address: int, nbytes: int) -> None:
    """Put fresh zeroed private memory at ``address``, where addresses are reserved."""
    _map(address, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED, -1, 0)


def reserve(nbytes: int) -> int:
    """Return the address of ``nbytes`` that nobody else gets, without memory behind them."""
    return _map(None, nbytes, _RESERVED, -1, 0, _PROT_NONE)


def reserve_at(address: int, nbytes: int) -> None:
    """Unmap what is at ``address`` and keep the addresses reserved."""
    _map(address, nbytes, _RESERVED | _MAP_FIXED, -1, 0, _PROT_NONE)


def map_file_at(address: int, fd: int, offset: int, nbytes: int) -> None:
    """Replace what is mapped at ``address`` by ``nbytes`` of the file at ``offset``, shared."""
    _map(address, nbytes, mmap.MAP_SHARED | _MAP_FIXED, fd, offset)


def pages_seen(fd: int, offset: int, nbytes: int) -> int:
    """Return how many pages of the range are in the page cache, or were and have been evicted.

    ``cachestat(2)``, since Linux 6.5; ``OSError`` where the kernel or a filter refuses it.
    """
    asked, found = (ctypes.c_uint64 * 2)(offset, nbytes), (ctypes.c_uint64 * 5)()
    _check(_SYSCALL(_CACHESTAT, fd, asked, found, 0))
    in_cache, _, _, evicted, _ = found
    return int(in_cache) + int(evicted)


def unmap(address: int, nbytes: int) -> None:
    """Unmap the pages from ``address`` on."""
    _check(_MUNMAP(address, nbytes))


def advise(address: int, nbytes: int, advice: Advice) -> None:
    """Give the kernel ``advice`` about the pages from ``address`` on."""
    _check(_MADVISE(address, nbytes, advice))


def return_large_blocks_at_once(nbytes: int) -> None:
    """Make the allocator give freed blocks of at least ``nbytes`` back to the system at once.

    By default glibc raises this bound to as much as 32 MiB by and by, and keeps what is
    freed below it for later: hundreds of megabytes for a model, in no budget.  The setting
    is the process's; there is none for a part of it (``mallopt``, M_MMAP_THRESHOLD).
    """
    for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        _MALLOPT(parameter, nbytes)


def return_freed_memory() -> None:
    """Make the allocator give freed memory back to the system (``malloc_trim``)."""
    _MALLOC_TRIM(0)


def _map(
    address: int | None,
    nbytes: int,
    flags: int,
    fd: int,
    offset: int,
    protection: int = mmap.PROT_READ | mmap.PROT_WRITE,
) -> int:
    at: int | None = _MMAP(address, nbytes, protection, flags, fd, offset)
    if at is None or at == _MAP_FAILED:
        _check(-1)
    assert at is not None
    return at


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
