"""The ways to read and write files of homes, which of them work here, and which is taken."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from zcompile.runtime.native import Absent, Native, load
from zcompile.runtime.native_io import uring_refusal


class FileIO(StrEnum):
    """How the file of homes is read and written.

    Natively, by io_uring or by threads with direct I/O, or through the page cache; or by Python's
    own threads with direct I/O.  ``AUTO`` takes the first of these that works.
    """

    AUTO = "auto"
    URING = "uring"
    THREADS = "threads"
    BUFFERED = "buffered"
    PYTHON = "python"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was taken, never ``AUTO``, and why nothing better was: ``None`` if there is nothing.

    Without ``native`` Python's threads do the work.
    """

    io: FileIO
    native: Native | None
    because: str | None


def refusal(io: FileIO) -> str | None:
    """Return why ``io`` does not work on this machine, ``None`` if it does."""
    native = load()
    if io not in (FileIO.URING, FileIO.THREADS):
        return None
    if isinstance(native, Absent):
        return f"there is no native library: {native.reason}"
    return uring_refusal(native) if io is FileIO.URING else None


def choose(io: FileIO) -> Choice:
    """Return what is taken where ``io`` is asked for.

    Raises ``ValueError`` when one is asked for by name that does not work here.
    """
    loaded = load()
    native = None if isinstance(loaded, Absent) else loaded
    if io is FileIO.AUTO:
        better = {each: refusal(each) for each in (FileIO.URING, FileIO.THREADS)}
        for each, reason in better.items():
            if reason is None:
                return Choice(each, native, better[FileIO.URING])
        return Choice(FileIO.PYTHON, None, better[FileIO.URING])
    reason = refusal(io)
    if reason is not None:
        raise ValueError(f"io={io.value!r}: {reason}; io='auto' takes what works")
    return Choice(io, None if io is FileIO.PYTHON else native, "it was asked for")
