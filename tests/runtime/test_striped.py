"""Extents striped over several folders: what one folder cannot show."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from zcompile.ir import PAGE_BYTES
from zcompile.runtime import libc
from zcompile.runtime.arena import Arena
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.mapping import FileMapper, HomeMapping
from zcompile.runtime.transfers import Transfers

NUM_FOLDERS = 3
STRIPE_BYTES = 2 * PAGE_BYTES
NBYTES = 20 * PAGE_BYTES + 100


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"swap{at}" for at in range(NUM_FOLDERS)]


@pytest.fixture
def striped(folders: list[Path]) -> Generator[ExtentFile, None, None]:
    runs = RunFolder.create_all(folders)
    file = ExtentFile(runs, slab_bytes=1 << 20, stripe_bytes=STRIPE_BYTES)
    yield file
    file.close()
    for run in runs:
        run.close()


class Disks:
    """Every file may be so many bytes large, and fails at some by another error."""

    def __init__(self, file: ExtentFile, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits = [1 << 60] * len(file.files)
        self.codes = [errno.ENOSPC] * len(file.files)
        numbers = {each.fd: number for number, each in enumerate(file.files)}
        allocate = os.posix_fallocate

        def within_limits(fd: int, offset: int, nbytes: int) -> None:
            number = numbers[fd]
            if offset + nbytes > self.limits[number]:
                raise OSError(self.codes[number], os.strerror(self.codes[number]))
            allocate(fd, offset, nbytes)

        monkeypatch.setattr(os, "posix_fallocate", within_limits)


@pytest.fixture
def disks(striped: ExtentFile, monkeypatch: pytest.MonkeyPatch) -> Disks:
    return Disks(striped, monkeypatch)


def filled(lease: Lease, transfers: Transfers) -> bytes:
    """Write random bytes to the extent, and return them."""
    content = os.urandom(lease.nbytes)
    memory = Arena(lease.nbytes)
    ctypes.memmove(memory.address, content, lease.nbytes)
    transfers.write(lease, 0, memory.address, lease.nbytes, lease.label, keep=memory).wait()
    return content


def read_back(lease: Lease, transfers: Transfers) -> bytes:
    memory = Arena(lease.nbytes)
    transfers.read(lease, 0, memory.address, lease.nbytes, lease.label, keep=memory).wait()
    return ctypes.string_at(memory.address, lease.nbytes)


def test_every_folder_has_its_share(striped: ExtentFile, io: FileIO) -> None:
    transfers = Transfers(striped, Ledger(), io=io)
    lease = striped.lease(NBYTES, "w")
    content = filled(lease, transfers)
    assert read_back(lease, transfers) == content
    transfers.close()
    shares = [0] * NUM_FOLDERS
    for piece in lease.pieces():
        stored = striped.files[piece.file].path.read_bytes()[piece.offset :]
        part = content[piece.start : piece.start + piece.nbytes]
        assert stored[: len(part)] == part
        assert piece.nbytes <= STRIPE_BYTES
        shares[piece.file] += piece.nbytes
    assert max(shares) - min(shares) <= STRIPE_BYTES


def test_files_of_one_size_grow_alike_and_have_no_holes(striped: ExtentFile) -> None:
    for nbytes in (100, 3 << 20, 5000, 1 << 20):
        striped.lease(nbytes, "w")
    sizes = {each.end for each in striped.files}
    assert len(sizes) == 1
    for each in striped.files:
        status = each.path.stat()
        assert status.st_size == each.end
        assert status.st_blocks * 512 >= status.st_size


def test_disks_of_unequal_size_are_used_to_their_ends(striped: ExtentFile, disks: Disks) -> None:
    disks.limits = [1 << 20, 4 << 20, (2 << 20) + PAGE_BYTES]
    leases: list[Lease] = []
    with pytest.raises(StorageError, match=r"allocate w: .*ENOSPC") as caught:
        leases.extend(iter(lambda: striped.lease(NBYTES, "w"), None))
    assert caught.value.filename in {str(each.path) for each in striped.files}
    leased = sum(each.capacity for each in leases)
    assert leased > sum(disks.limits) - NUM_FOLDERS * (PAGE_BYTES + NBYTES)
    transfers = Transfers(striped, Ledger())
    contents = [filled(each, transfers) for each in leases]
    assert [read_back(each, transfers) for each in leases] == contents
    transfers.close()
    leases.pop()
    leases.append(striped.lease(NBYTES, "w"))
    disks.limits[0] = 8 << 20
    leases.append(striped.lease(1 << 20, "w"))
    assert striped.files[0].end > 1 << 20, "where there is room again it is used"


def test_a_disk_that_fails_is_named_and_nothing_is_taken(striped: ExtentFile, disks: Disks) -> None:
    disks.limits[1], disks.codes[1] = 0, errno.EIO
    with pytest.raises(StorageError, match=r"allocate layers\.0: .*EIO") as caught:
        striped.lease(NBYTES, "layers.0")
    assert caught.value.filename == str(striped.files[1].path)
    assert [each.path.stat().st_size for each in striped.files] == [PAGE_BYTES] * NUM_FOLDERS
    disks.limits[1] = 1 << 60
    striped.lease(NBYTES, "layers.0")


def test_a_file_that_is_too_short_is_named(striped: ExtentFile, io: FileIO) -> None:
    transfers = Transfers(striped, Ledger(), io=io)
    lease = striped.lease(NBYTES, "layers.0")
    filled(lease, transfers)
    os.truncate(striped.files[1].path, PAGE_BYTES)
    with pytest.raises(StorageError, match=r"read layers\.0: .*ENODATA") as caught:
        read_back(lease, transfers)
    assert caught.value.filename == str(striped.files[1].path)
    assert caught.value.offset == PAGE_BYTES, "as it counts in that file"
    transfers.close()


def test_a_vanished_folder_is_named(striped: ExtentFile) -> None:
    shutil.rmtree(striped.files[2].folder.path)
    with pytest.raises(StorageError, match=r"lease w: .*ENOENT.*vanished") as caught:
        striped.lease(1, "w")
    assert caught.value.filename == str(striped.files[2].path)


def opened(mapping: HomeMapping) -> Tensor:
    buffer = mapping.open(lambda _: None)
    return torch.frombuffer(buffer, dtype=torch.uint8)


def test_a_home_is_one_stretch_of_memory(striped: ExtentFile) -> None:
    mapper, transfers = FileMapper(), Transfers(striped, Ledger())
    first, second = (striped.lease(NBYTES, "w") for _ in range(2))
    mapping = mapper.map(first)
    tensor = opened(mapping)
    before = filled(first, transfers)
    assert tensor.numpy().tobytes()[:NBYTES] == before
    after = filled(second, transfers)
    address = tensor.data_ptr()
    mapping.remap(second)
    assert tensor.data_ptr() == address
    assert tensor.numpy().tobytes()[:NBYTES] == after
    tensor[:] = 7
    assert read_back(second, transfers) == b"\7" * NBYTES
    assert read_back(first, transfers) == before
    transfers.close()


def test_a_remapping_that_fails_half_way_shows_the_bytes_of_before(
    striped: ExtentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapper, transfers = FileMapper(), Transfers(striped, Ledger())
    first, second = (striped.lease(NBYTES, "w") for _ in range(2))
    mapping = mapper.map(first)
    tensor = opened(mapping)
    before = filled(first, transfers)
    filled(second, transfers)
    map_file_at, calls = libc.map_file_at, [0]

    def fail_once(address: int, fd: int, offset: int, nbytes: int) -> None:
        calls[0] += 1
        if calls[0] == 4:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        map_file_at(address, fd, offset, nbytes)

    monkeypatch.setattr(libc, "map_file_at", fail_once)
    with pytest.raises(StorageError, match=r"map w: .*ENOMEM.*vm\.max_map_count"):
        mapping.remap(second)
    assert mapping.lease is first
    assert tensor.numpy().tobytes()[:NBYTES] == before
    transfers.close()


def test_a_page_in_any_file_is_seen(striped: ExtentFile) -> None:
    transfers = Transfers(striped, Ledger())
    if transfers.buffered_because or striped.sight_fault():
        return  # nobody can tell then, and ``untouched`` is never asked
    for at in range(0, NBYTES, STRIPE_BYTES):
        lease = striped.lease(NBYTES, "w")
        filled(lease, transfers)
        assert lease.untouched()
        (piece,) = striped.stripes.pieces(lease.offset + at, 1)
        os.pwrite(striped.files[piece.file].fd, b"x", piece.offset)
        assert not lease.untouched()
    transfers.close()


def test_a_folder_that_refuses_direct_io_is_used_through_the_page_cache(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch, io: FileIO
) -> None:
    real = os.open

    def refusing(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT and "swap1" in str(path):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    file = ExtentFile(RunFolder.create_all(folders), stripe_bytes=STRIPE_BYTES)
    transfers = Transfers(file, Ledger(), io=io)
    lease = file.lease(NBYTES, "w")
    assert read_back(lease, transfers) is not None
    content = filled(lease, transfers)
    assert read_back(lease, transfers) == content
    if io is not FileIO.BUFFERED:
        assert str(folders[1]) in str(transfers.buffered_because)
        assert transfers.buffer_bytes > 0, "the other folders still need buffers"
    transfers.close()
    file.close()


def test_where_one_folder_cannot_be_made_none_stays(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"nvme_dir=.*file.* is not a folder"):
        RunFolder.create_all([tmp_path / "one", tmp_path / "file"])
    assert list((tmp_path / "one").iterdir()) == []


RUN = """
import sys
from pathlib import Path
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.folder import RunFolder
folders = RunFolder.create_all(map(Path, sys.argv[1:]))
file = ExtentFile(folders)
lease = file.lease(1000, "w")
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_next_run_removes_what_a_killed_one_left_in_every_folder(folders: list[Path]) -> None:
    command = [sys.executable, "-c", RUN, *map(str, folders)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        RunFolder.create_all(folders)  # and gone at once: a living run keeps its own
        assert [len(list(each.iterdir())) for each in folders] == [1] * NUM_FOLDERS
        run.kill()
    assert [len(list(each.iterdir())) for each in folders] == [1] * NUM_FOLDERS
    for each in RunFolder.create_all(reversed(folders)):
        each.close()
    assert [list(each.iterdir()) for each in folders] == [[]] * NUM_FOLDERS
