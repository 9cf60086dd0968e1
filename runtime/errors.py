"""The error for a file operation behind a home that failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_REMEDIES = {
    errno.ENOSPC: "free space there, or set the option nvme_dir to a folder on a larger disk",
    errno.EDQUOT: "raise the quota, or set the option nvme_dir to a folder outside it",
    errno.EFBIG: (
        "raise the limit on file sizes (ulimit -f), or set the option nvme_dir to a folder on a "
        "file system with larger files"
    ),
    errno.EIO: "the device reports a fault: check its health, or set the option nvme_dir elsewhere",
    errno.ENOENT: "the run's folder vanished: nothing may remove it while the process lives",
    errno.ENOMEM: "raise the system setting vm.max_map_count, or keep fewer tensors in files",
    errno.EBADMSG: "the device, its memory or what lies between altered them: check their health, "
    "go on from a checkpoint, and set the option nvme_dir elsewhere",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
}


_CAUSES = {errno.EBADMSG: "these are not the bytes that were written there"}


class StorageError(OSError):
    """A file operation behind a home failed.

    The text names the action, tensor, size, file, offset, cause and remedy; ``errno`` and
    ``filename`` are as in any ``OSError``.
    """

    offset: int
    nbytes: int
    label: str

    @classmethod
    def during(
        cls, action: str, code: int, *, file: Path, offset: int, nbytes: int, label: str
    ) -> StorageError:
        """Return the error for ``action`` on ``nbytes`` bytes of tensor ``label``.

        ``code`` is the errno, ``offset`` the place in ``file`` in bytes.
        """
        name = errno.errorcode.get(code, str(code))
        remedy = _REMEDIES.get(code)
        cause = _CAUSES.get(code) or os.strerror(code)
        text = f"cannot {action} {label}: {nbytes} B at offset {offset}: {cause} ({name})"
        error = cls(code, f"{text}; {remedy}" if remedy else text, str(file))
        error.offset, error.nbytes, error.label = offset, nbytes, label
        return error
