"""Storage that fails: errors name file, offset, length and tensor, and nothing hangs."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Generator

import pytest

from tests.runtime.conftest import USABLE
from tests.runtime.faulty_calls import Fault, FaultyCalls, NativeFaults, raising
from zcompile.ir import PAGE_BYTES
from zcompile.runtime.arena import Arena
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.native_carrier import NativeCarrier
from zcompile.runtime.native_io import IOCall
from zcompile.runtime.transfers import Transfers

NBYTES = 10 * PAGE_BYTES + 123
BLOCK_BYTES = 2 * PAGE_BYTES


class Patient:
    """A tensor in memory, its extent, and transfers whose calls can be made to fail."""

    def __init__(self, file: ExtentFile, ledger: Ledger, io: FileIO) -> None:
        self.file = file
        calls = FaultyCalls()
        self.transfers = Transfers(
            file,
            ledger,
            block_bytes=BLOCK_BYTES,
            direct_bytes=BLOCK_BYTES,
            io=io,
            calls=calls if io is FileIO.PYTHON else None,
        )
        carrier = self.transfers.carrier
        self.calls: FaultyCalls | NativeFaults = calls
        if isinstance(carrier, NativeCarrier):
            self.calls = NativeFaults(carrier.io, file)
        self.lease: Lease = file.lease(NBYTES, "layers.0.weight")
        self.source, self.target = Arena(NBYTES), Arena(NBYTES)
        self.content = os.urandom(NBYTES)
        ctypes.memmove(self.source.address, self.content, NBYTES)

    def write(self) -> None:
        self.transfers.write(
            self.lease, 0, self.source.address, NBYTES, self.lease.label, keep=self.source
        ).wait()

    def read(self) -> bytes:
        self.transfers.read(
            self.lease, 0, self.target.address, NBYTES, self.lease.label, keep=self.target
        ).wait()
        return ctypes.string_at(self.target.address, NBYTES)


@pytest.fixture(params=[io for io in USABLE if io is not FileIO.BUFFERED])
def disk(
    request: pytest.FixtureRequest, extent_file: ExtentFile, ledger: Ledger
) -> Generator[Patient, None, None]:
    disk = Patient(extent_file, ledger, request.param)
    yield disk
    disk.transfers.close()


def assert_works(disk: Patient) -> None:
    disk.write()
    assert disk.read() == disk.content


SHORT: dict[str, Fault] = {
    "odd": lambda _call, nbytes: max(nbytes - 700, 1),
    "a page": lambda _call, nbytes: min(nbytes, PAGE_BYTES),
    "every other call": lambda call, nbytes: nbytes if call % 2 else max(nbytes // 3, 1),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_calls_are_continued(disk: Patient, name: str) -> None:
    def fault(call: int, nbytes: int) -> int:
        short = SHORT[name](call, nbytes)
        if disk.calls.fds[-1] == disk.file.files[0].direct_fd:  # which moves whole pages only
            return max(short // PAGE_BYTES, 1) * PAGE_BYTES
        return short

    with disk.calls.suffering(fault):
        assert_works(disk)
    assert disk.transfers.buffered_because is None


def test_a_direct_call_that_ends_within_a_page_is_continued(disk: Patient, ledger: Ledger) -> None:
    """It moves everything but claims to have moved less, as a network file system may."""

    class Shortened(FaultyCalls):
        def write(self, fd: int, address: int, nbytes: int, offset: int) -> int:
            return max(super().write(fd, address, nbytes, offset) - 700, 1)

        def read(self, fd: int, address: int, nbytes: int, offset: int) -> int:
            return max(super().read(fd, address, nbytes, offset) - 700, 1)

    def shorten(after: bool, call: IOCall) -> None:
        if after:
            call.result = max(call.result - 700, 1)

    carrier = disk.transfers.carrier
    if isinstance(carrier, NativeCarrier):
        carrier.io.inject(shorten)
    else:
        disk.transfers.close()
        disk.transfers = Transfers(disk.file, ledger, block_bytes=BLOCK_BYTES, calls=Shortened())
    assert_works(disk)


def test_interrupted_calls_are_repeated(disk: Patient) -> None:
    def fault(call: int, nbytes: int) -> int:
        if call % 3:
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
        return nbytes

    with disk.calls.suffering(fault):
        assert_works(disk)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.ENOENT])
def test_an_error_names_file_offset_length_and_tensor(disk: Patient, code: int) -> None:
    with (
        disk.calls.suffering(raising(code)),
        pytest.raises(
            StorageError, match=f"cannot write layers.*{errno.errorcode[code]}"
        ) as raised,
    ):
        disk.write()
    error = raised.value
    assert (error.errno, error.filename) == (code, str(disk.file.files[0].path))
    assert (error.offset - disk.lease.offset) % BLOCK_BYTES == 0
    assert 0 < error.nbytes <= BLOCK_BYTES
    assert error.label == "layers.0.weight"
    assert_works(disk)


@pytest.mark.parametrize("at_call", range(1, 8))
def test_any_block_may_fail_and_the_next_copy_works(disk: Patient, at_call: int) -> None:
    disk.write()
    with disk.calls.suffering(raising(errno.EIO, at_call)):
        error = outcome(disk.read)
    if len(disk.calls.fds) >= at_call:
        assert error is not None
        assert error.errno == errno.EIO
    assert_works(disk)


def test_the_error_is_raised_at_every_wait(disk: Patient) -> None:
    with disk.calls.suffering(raising(errno.EIO)):
        pending = disk.transfers.read(disk.lease, 0, disk.target.address, NBYTES, "w")
        for _ in range(2):
            with pytest.raises(StorageError):
                pending.wait()


def test_copies_behind_a_failed_one_are_carried_out(disk: Patient) -> None:
    disk.write()
    with disk.calls.suffering(raising(errno.EIO, at_call=1)):
        copies = [
            disk.transfers.read(disk.lease, 0, disk.target.address, 100, f"w{i}") for i in range(9)
        ]
        failed = [copy for copy in copies if isinstance(outcome(copy.wait), StorageError)]
    assert len(failed) == 1


def outcome(call: Callable[[], object]) -> StorageError | None:
    try:
        call()
    except StorageError as error:
        return error
    return None


def test_refused_direct_calls_fall_back_to_the_page_cache(disk: Patient) -> None:
    def fault(_call: int, nbytes: int) -> int:
        if disk.calls.fds[-1] == disk.file.files[0].direct_fd:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return nbytes

    with disk.calls.suffering(fault):
        assert_works(disk)
        reason = disk.transfers.buffered_because
        assert reason is not None
        assert "O_DIRECT" in reason
        disk.calls.fds.clear()
        assert_works(disk)
        assert disk.file.files[0].direct_fd not in disk.calls.fds, "a refusal is remembered"


def test_an_invalid_call_without_direct_io_is_an_error(disk: Patient) -> None:
    with disk.calls.suffering(raising(errno.EINVAL)), pytest.raises(StorageError, match="EINVAL"):
        disk.read()


def test_a_truncated_file(disk: Patient) -> None:
    disk.write()
    os.truncate(disk.file.files[0].path, disk.lease.offset + PAGE_BYTES)
    with pytest.raises(StorageError, match="cannot read layers") as raised:
        disk.read()
    assert raised.value.errno == errno.ENODATA
    disk.write()  # writing makes it whole again
    assert disk.read() == disk.content


def test_a_removed_folder_leaves_the_open_file_readable(disk: Patient) -> None:
    disk.write()
    shutil.rmtree(disk.file.files[0].folder.path)
    assert disk.read() == disk.content
    with pytest.raises(StorageError, match="vanished"):
        disk.file.lease(1, "layers.0.weight.grad")


def test_a_closed_file(disk: Patient) -> None:
    disk.file.close()
    with pytest.raises(StorageError, match="EBADF"):
        disk.read()


def test_only_what_moved_is_counted(disk: Patient, ledger: Ledger) -> None:
    with disk.calls.suffering(raising(errno.EIO)), pytest.raises(StorageError):
        disk.write()
    assert ledger.snapshot().moved_bytes[Channel.NVME_WRITE] == 0
