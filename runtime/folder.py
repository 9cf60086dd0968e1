"""The private folder of one run inside ``nvme_dir``, or inside each of several."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import socket
import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from zcompile.runtime.errors import StorageError

EXTENTS_NAME = "extents.bin"
LOCK_NAME = "lock"
FORMAT = "zinf run folder"

_OURS = re.compile(r"zinf-\d+-[0-9a-f]{8}")
_FAULTS_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_REMOVABLE = (EXTENTS_NAME, LOCK_NAME)  # the lock last: what is left half removed is still known


class RunFolder:
    """``nvme_dir/zinf-<pid>-<random>``, locked for as long as this process uses it.

    Other runs may share ``nvme_dir``: a run whose lock is free was killed, and the next
    run removes what it left.  The folder goes at ``close``, at interpreter exit, or with
    the last reference; a forked child never removes it.
    """

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._removing = weakref.finalize(self, _remove_own, path, lock_fd, os.getpid())

    @classmethod
    def create(cls, nvme_dir: Path) -> RunFolder:
        """Make and lock a new folder in ``nvme_dir``; remove those of killed runs.

        A missing ``nvme_dir`` is made, and stays.  Raises ``ValueError`` if it cannot be
        used, ``StorageError`` if the disk is full or broken.
        """
        parent = nvme_dir.absolute()
        _make_parent(parent)
        try:
            with _exclusive(parent):
                _remove_stale(parent)
                path = parent / f"zinf-{os.getpid()}-{secrets.token_hex(4)}"
                path.mkdir(mode=0o700)
                return cls(path, _make_lock(path / LOCK_NAME))
        except OSError as error:
            code = error.errno or errno.EIO
            if code not in _FAULTS_OF_THE_DISK:
                raise _unusable(parent, f"cannot be used ({error.strerror})") from error
            raise StorageError.during(
                "create", code, file=parent, offset=0, nbytes=0, label="the run's folder"
            ) from error

    @classmethod
    def create_all(cls, nvme_dirs: Iterable[Path]) -> tuple[RunFolder, ...]:
        """Make and lock a new folder in each; none stays if one of them cannot be made."""
        made: list[RunFolder] = []
        try:
            made += map(cls.create, nvme_dirs)
        except BaseException:
            for each in made:
                each.close()
            raise
        return tuple(made)

    def close(self) -> None:
        """Remove the folder and unlock it; again is harmless.  Mappings of its files stay valid."""
        self._removing()


def _unusable(nvme_dir: Path, why: str) -> ValueError:
    return ValueError(
        f"option nvme_dir={str(nvme_dir)!r} {why}: give a folder on a local disk "
        "in which this user may write"
    )


def _make_parent(nvme_dir: Path) -> None:
    if nvme_dir.exists() and not nvme_dir.is_dir():
        raise _unusable(nvme_dir, "is not a folder")
    try:
        nvme_dir.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        why = f"does not exist and cannot be made ({error.strerror})"
        raise _unusable(nvme_dir, why) from error


@contextmanager
def _exclusive(folder: Path) -> Generator[None, None, None]:
    """Hold the lock of ``nvme_dir`` itself, so that no run is seen half made."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _make_lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    owner = {"format": FORMAT, "pid": os.getpid(), "host": socket.gethostname(), "created": created}
    os.write(fd, json.dumps(owner).encode())
    return fd


def _remove_stale(nvme_dir: Path) -> None:
    for path in nvme_dir.iterdir():
        if _OURS.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            _remove_if_free(path)


def _remove_if_free(path: Path) -> None:
    try:
        fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        with suppress(OSError):  # killed between making the folder and its lock: it is empty
            path.rmdir()
        return
    except OSError:  # another user's
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_ours(fd):
            _remove(path)
    except BlockingIOError:  # alive
        return
    finally:
        os.close(fd)


def _is_ours(fd: int) -> bool:
    try:
        owner: object = json.loads(os.pread(fd, 4096, 0))
    except ValueError:
        return False
    return isinstance(owner, dict) and cast(dict[str, object], owner).get("format") == FORMAT


def _remove(path: Path) -> None:
    for name in _REMOVABLE:
        (path / name).unlink(missing_ok=True)
    with suppress(OSError):  # somebody else put something in it: theirs to remove
        path.rmdir()


def _remove_own(path: Path, lock_fd: int, pid: int) -> None:
    if os.getpid() == pid:
        _remove(path)
        os.close(lock_fd)
