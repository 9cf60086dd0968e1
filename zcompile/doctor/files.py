"""How files are read and written here, and what a folder is good for."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from zcompile.doctor.finding import Finding, Section
from zcompile.options import IO_VARIABLE, Options
from zcompile.report.units import mebibytes
from zcompile.runtime.arena import Arena
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import Choice, FileIO, choose, refusal
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.mounts import IN_MEMORY, MOUNTS, file_system_of
from zcompile.runtime.native_carrier import NativeCarrier
from zcompile.runtime.transfers import Transfers, sums_refusal

_FILES = Section("files")
_PROBE_BYTES = 1 << 20
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.s3fs"})
_ALLOW_RING = (
    "allow io_uring: sysctl kernel.io_uring_disabled=0, in a container a seccomp profile that "
    "has it (--security-opt seccomp=FILE); the next best way is used meanwhile"
)


def io_findings(env: Mapping[str, str]) -> tuple[Finding, ...]:
    """Say which way to read and write files is taken, and why not a better one."""
    try:
        io = FileIO(Options.from_env(env).io)
        choice = choose(io)
    except ValueError as error:
        told = f"{IO_VARIABLE} asks for what does not work: {error}"
        return (_FILES.warning("I/O", told, f"unset {IO_VARIABLE}"),)
    return (_taken(io, choice), _ring())


def _taken(asked: FileIO, choice: Choice) -> Finding:
    if asked is not FileIO.AUTO:
        return _FILES.note("I/O", f"{choice.io}, since {IO_VARIABLE}={asked} asks for it")
    return _FILES.ok("I/O", f"{choice.io}, the best way that works here")


def _ring() -> Finding:
    reason = refusal(FileIO.URING)
    if reason is None:
        return _FILES.ok("io_uring", "works")
    remedy = _ALLOW_RING if refusal(FileIO.THREADS) is None else "see the native library"
    return _FILES.warning("io_uring", f"not used: {reason}", remedy)


def folder_findings(nvme_dirs: Sequence[Path]) -> tuple[Finding, ...]:
    """Try ``nvme_dirs``, striped as one, as a run would use them; nothing is left there.

    Raises ``ValueError`` if files cannot be made in one of them.
    """
    if not nvme_dirs:
        return (_FILES.note("folder", "none was tried", "zinf doctor --nvme-dir FOLDER tries one"),)
    with ExitStack() as stack:
        for folder in nvme_dirs:
            stack.enter_context(_existing(folder))
        each = [found for folder in nvme_dirs for found in (_file_system(folder), _room(folder))]
        return (*each, *_devices(nvme_dirs), *_tried(nvme_dirs))


@contextmanager
def _existing(folder: Path) -> Generator[None]:
    made = not folder.exists()
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        yield
    finally:
        if made:
            folder.rmdir()


def _file_system(folder: Path) -> Finding:
    kind = file_system_of(folder, MOUNTS.read_text())
    says = f"{folder} is on {kind}"
    elsewhere = "name a folder on a local NVMe drive"
    if kind in IN_MEMORY:
        return _FILES.warning("file system", f"{says}: what lies there takes memory", elsewhere)
    if kind in _REMOTE:
        return _FILES.warning("file system", f"{says}: every copy crosses the network", elsewhere)
    return _FILES.ok("file system", says)


def _room(folder: Path) -> Finding:
    usage = shutil.disk_usage(folder)
    free, total = mebibytes(usage.free), mebibytes(usage.total)
    return _FILES.ok("room", f"{free} free of {total} at {folder}")


def _devices(folders: Sequence[Path]) -> tuple[Finding, ...]:
    if len(folders) == 1:
        return ()
    of_device: dict[int, list[str]] = {}
    for folder in folders:
        of_device.setdefault(folder.stat().st_dev, []).append(str(folder))
    shared = [" and ".join(names) for names in of_device.values() if len(names) > 1]
    if shared:
        says = f"{'; '.join(shared)} share a device: striping over them gains nothing"
        return (_FILES.warning("devices", says, "name one folder of each device"),)
    return (_FILES.ok("devices", f"{len(folders)}, striped as one"),)


def _tried(nvme_dirs: Sequence[Path]) -> tuple[Finding, ...]:
    runs = RunFolder.create_all(nvme_dirs)
    try:
        file = ExtentFile(runs, slab_bytes=2 * _PROBE_BYTES, stripe_bytes=_PROBE_BYTES, sums=True)
        transfers = Transfers(file, Ledger())
        try:
            return _round_trip(file, transfers)
        finally:
            transfers.close()
            file.close()
    except StorageError as error:
        return (_FILES.warning("trial", str(error), "name another folder"),)
    finally:
        for run in runs:
            run.close()


def _round_trip(file: ExtentFile, transfers: Transfers) -> tuple[Finding, ...]:
    """Write and read in every folder, aligned and not: then the status says what works."""
    nbytes = _PROBE_BYTES * len(file.files)
    arena = Arena(nbytes + 64)
    lease = file.lease(nbytes, "trial")
    for shift in (0, 64):
        address = arena.address + shift
        transfers.write(lease, 0, address, nbytes, "trial", keep=arena).wait()
        transfers.read(lease, 0, address, nbytes, "trial", keep=arena).wait()
    refusal = sums_refusal(file, transfers)
    return _direct(transfers.buffered_because), _sums(refusal), *_registered(transfers)


def _sums(refusal: str | None) -> Finding:
    if refusal is None:
        return _FILES.ok("checksums", "can be kept, of each page that is written")
    remedy = "name a folder on ext4 or xfs, on a local drive, under Linux 6.5 or later"
    return _FILES.warning("checksums", f"cannot be kept: {refusal}", remedy)


def _direct(buffered_because: str | None) -> Finding:
    if buffered_because is None:
        return _FILES.ok("direct I/O", "works: what is read and written leaves no copy in memory")
    return _FILES.warning(
        "direct I/O",
        f"not used, files go through the page cache: {buffered_because}",
        "name a folder on ext4 or xfs, on a local drive",
    )


def _registered(transfers: Transfers) -> tuple[Finding, ...]:
    if transfers.choice.io is not FileIO.URING or not isinstance(transfers.carrier, NativeCarrier):
        return ()
    reason = transfers.carrier.status().registered_because
    if reason is None or transfers.buffered_because is not None:
        return (_FILES.ok("registered buffers", "the ring has its buffers registered"),)
    return (
        _FILES.warning(
            "registered buffers",
            f"not used: {reason}",
            "raise the limit on locked memory (ulimit -l, or LimitMEMLOCK= of a service)",
        ),
    )
