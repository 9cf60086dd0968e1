"""One file that extents lie in."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from zcompile.ir import PAGE_BYTES
from zcompile.runtime.errors import StorageError
from zcompile.runtime.folder import EXTENTS_NAME, RunFolder

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where there is no room left."""


class BackingFile:
    """The file of a run in one of its folders, never sparse.  It begins with a header in JSON.

    ``fd`` goes through the page cache; ``direct_fd`` bypasses it, or is ``None`` where the file
    system refuses, for the reason in ``direct_refusal``.  ``end`` is the size in bytes.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.path: Path = folder.path / EXTENTS_NAME
        self.end = PAGE_BYTES
        self.direct_refusal: str | None = None
        self.fd = self._create()
        self.direct_fd = self._open_direct()

    def append(self, nbytes: int) -> int:
        """Allocate ``nbytes`` at the end; return the errno, 0 for success."""
        try:
            os.posix_fallocate(self.fd, self.end, nbytes)
        except OSError as error:
            # What was allocated before the disk was full would otherwise stay taken.
            os.ftruncate(self.fd, self.end)
            return error.errno or errno.EIO
        self.end += nbytes
        return 0

    def cut_off(self, nbytes: int) -> None:
        """Give back the last ``nbytes``, which nobody has used yet."""
        self.end -= nbytes
        os.ftruncate(self.fd, self.end)

    def fault(self) -> int:
        """Return the errno that using the file would meet: closed, or removed; 0 for none."""
        if self.fd == -1:
            return errno.EBADF
        return errno.ENOENT if os.fstat(self.fd).st_nlink == 0 else 0

    def descriptors(self) -> list[int]:
        """Return what is open."""
        return [fd for fd in (self.fd, self.direct_fd) if fd is not None]

    def forget(self) -> None:
        """Take note that the descriptors are closed."""
        self.fd = -1
        self.direct_fd = None

    def error(self, action: str, code: int, offset: int, nbytes: int, label: str) -> StorageError:
        """Return the error for ``action`` on ``nbytes`` at ``offset`` of this file."""
        return StorageError.during(
            action, code, file=self.path, offset=offset, nbytes=nbytes, label=label
        )

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
            raise self.error("create", code, 0, PAGE_BYTES, "the header") from error
        return fd

    def _open_direct(self) -> int | None:
        try:
            return os.open(self.path, os.O_RDWR | os.O_DIRECT)
        except OSError as error:
            self.direct_refusal = f"the file system refuses O_DIRECT: {error.strerror}"
            return None
