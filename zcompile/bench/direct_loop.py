"""The plainest fast way to move a file: threads that each read or write every so many blocks."""

from __future__ import annotations

import errno
import os
import threading

from zcompile.runtime.syscalls import SystemCalls

NUM_THREADS = 4
BLOCK_BYTES = 8 << 20


def direct_loop(fd: int, offset: int, address: int, nbytes: int, *, write: bool) -> None:
    """Move ``nbytes`` between the file, opened with O_DIRECT, and memory; all are whole pages.

    What the engines are measured against: it needs memory for everything, order for nothing.
    Raises ``OSError`` where a thread met one.
    """
    calls = SystemCalls()
    call = calls.write if write else calls.read
    failed: list[OSError] = []

    def move(first: int) -> None:
        try:
            for at in range(first, nbytes, NUM_THREADS * BLOCK_BYTES):
                end = min(at + BLOCK_BYTES, nbytes)
                while at < end:
                    moved = call(fd, address + at, end - at, offset + at)
                    if moved == 0:
                        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA))
                    at += moved
        except OSError as error:
            failed.append(error)

    threads = [
        threading.Thread(target=move, args=(number * BLOCK_BYTES,)) for number in range(NUM_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
