"""Sums of pages: a flipped bit is found, whoever may write is no alarm."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.runtime.conftest import USABLE
from zcompile.ir import PAGE_BYTES, Tier
from zcompile.runtime import page_sums
from zcompile.runtime.arena import Arena
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.native import NATIVE_VARIABLE
from zcompile.runtime.page_sums import SumTable, seen_ranges
from zcompile.runtime.transfers import Transfers, sums_refusal

NBYTES = 11 * PAGE_BYTES + 100
WAYS = [
    *((io, num, True) for io in USABLE if io is not FileIO.BUFFERED for num in (1, 3)),
    (FileIO.PYTHON, 1, False),
]
"""Ways to read and write, numbers of folders, and whether there is a native library."""


class Disk:
    """Extents with sums, and what moves their bytes."""

    def __init__(self, folder: Path, io: FileIO, num_folders: int) -> None:
        folders = RunFolder.create_all(folder / str(at) for at in range(num_folders))
        self.file = ExtentFile(folders, slab_bytes=1 << 20, stripe_bytes=2 * PAGE_BYTES, sums=True)
        self.ledger = Ledger()
        self.transfers = Transfers(
            self.file,
            self.ledger,
            block_bytes=2 * PAGE_BYTES,
            direct_bytes=2 * PAGE_BYTES,
            io=io,
        )

    def close(self) -> None:
        self.transfers.close()
        self.file.close()

    def write(self, lease: Lease, content: bytes, offset: int = 0, shift: int = 0) -> None:
        memory = Arena(len(content) + shift)
        ctypes.memmove(memory.address + shift, content, len(content))
        address = memory.address + shift
        self.transfers.write(lease, offset, address, len(content), lease.label, keep=memory).wait()

    def read(self, lease: Lease, shift: int = 0) -> bytes:
        memory = Arena(lease.nbytes + shift)
        address = memory.address + shift
        self.transfers.read(lease, 0, address, lease.nbytes, lease.label, keep=memory).wait()
        return ctypes.string_at(address, lease.nbytes)

    def damage(self, lease: Lease, at: int) -> tuple[Path, int]:
        """Flip a bit of the extent on the disk, past the page cache; return file and offset."""
        (piece,) = self.file.stripes.pieces(lease.offset + at, 1)
        file = self.file.files[piece.file]
        assert file.direct_fd is not None
        start = piece.offset // PAGE_BYTES * PAGE_BYTES
        page = mmap.mmap(-1, PAGE_BYTES)
        os.preadv(file.direct_fd, [page], start)
        page[piece.offset - start] ^= 1
        os.pwritev(file.direct_fd, [page], start)
        return file.path, start


@contextmanager
def opened(
    folder: Path, way: tuple[FileIO, int, bool], monkeypatch: pytest.MonkeyPatch
) -> Generator[Disk | None]:
    """Lend a disk, ``None`` where sums cannot be kept here."""
    io, num_folders, native = way
    if not native:
        monkeypatch.setenv(NATIVE_VARIABLE, "0")
    disk = Disk(folder, io, num_folders)
    yield None if sums_refusal(disk.file, disk.transfers) else disk
    disk.close()


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}{'' if way[2] else '-absent'}")
def disk(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Generator[Disk, None, None]:
    with opened(tmp_path, request.param, monkeypatch) as found:
        if found is None:
            pytest.skip("the temporary folder or the kernel does not let sums be kept")
        yield found


@pytest.mark.parametrize("shift", [0, 8])
def test_a_flipped_bit_in_any_page_is_an_error(disk: Disk, shift: int) -> None:
    lease = disk.file.lease(NBYTES, "layers.0.weight")
    for at in range(0, NBYTES, PAGE_BYTES):
        content = os.urandom(NBYTES)
        disk.write(lease, content, shift=shift)
        assert disk.read(lease, shift) == content
        path, offset = disk.damage(lease, at + 50)
        with pytest.raises(StorageError, match="EBADMSG") as caught:
            disk.read(lease, shift)
        error = caught.value
        assert (error.errno, error.filename) == (errno.EBADMSG, str(path))
        assert (error.offset, error.nbytes, error.label) == (offset, PAGE_BYTES, "layers.0.weight")
        for part in ("not the bytes that were written", "checkpoint", "nvme_dir"):
            assert part in str(error)


def test_an_extent_that_is_leased_again_has_its_own_sums(disk: Disk) -> None:
    for nbytes in (NBYTES, 3 * PAGE_BYTES, 100, NBYTES):
        lease = disk.file.lease(nbytes, "w")
        content = os.urandom(nbytes)
        disk.write(lease, content)
        assert disk.read(lease) == content
        lease.release()


def test_pieces_that_are_written_one_by_one(disk: Disk) -> None:
    lease = disk.file.lease(NBYTES, "w")
    content = os.urandom(NBYTES)
    for at in range(0, NBYTES, 3 * PAGE_BYTES):
        disk.write(lease, content[at : at + 3 * PAGE_BYTES], offset=at)
    assert disk.read(lease) == content
    disk.damage(lease, 7 * PAGE_BYTES)
    with pytest.raises(StorageError, match="EBADMSG"):
        disk.read(lease)


def test_pages_that_are_written_in_part_are_no_alarm(disk: Disk) -> None:
    lease = disk.file.lease(NBYTES, "w")
    content = bytearray(os.urandom(NBYTES))
    disk.write(lease, bytes(content))
    content[100:9000] = b"\1" * 8900
    disk.write(lease, b"\1" * 8900, offset=100)
    assert disk.read(lease) == content
    disk.file.look()
    assert disk.read(lease) == content


def tensor_in(homes: Homes, disk: Disk, numel: int) -> tuple[Tensor, Lease]:
    """Return a home whose bytes were written by a copy, and its extent."""
    home = homes.fresh("w", Tier.NVME, torch.float32, (numel,), (1,))
    place = homes.find(home)
    assert place is not None
    lease = place.home.lease
    assert lease is not None
    disk.write(lease, torch.rand(numel).numpy().tobytes())
    return home, lease


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("how", ["store", "read", "numpy"])
def test_code_that_writes_through_the_mapping_is_no_alarm(
    disk: Disk, how: str, looked: bool
) -> None:
    homes = Homes(disk.file, disk.ledger)
    tensor, lease = tensor_in(homes, disk, NBYTES // 4)
    if how == "store":
        tensor.data[2000:2100] = 7
    elif how == "numpy":
        tensor.numpy()[::100] = 5
    else:
        assert tensor.sum() > 0
    homes.trim()
    if looked:
        homes.look()
    for _ in range(2):
        assert disk.read(lease) == tensor.numpy().tobytes()
    homes.close()


def test_it_is_checked_again_once_it_has_been_written(disk: Disk) -> None:
    homes = Homes(disk.file, disk.ledger)
    tensor, lease = tensor_in(homes, disk, NBYTES // 4)
    tensor.fill_(3)
    homes.trim()
    homes.look()
    disk.write(lease, torch.rand(NBYTES // 4).numpy().tobytes())
    disk.read(lease)
    disk.damage(lease, 5 * PAGE_BYTES)
    with pytest.raises(StorageError, match="EBADMSG"):
        disk.read(lease)
    homes.close()


def test_a_write_beside_it_lets_nothing_be_forgotten(disk: Disk) -> None:
    """A direct write drops the large page of the cache that holds a neighbour's new bytes, too."""
    homes = Homes(disk.file, disk.ledger)
    made = [tensor_in(homes, disk, 4 * PAGE_BYTES) for _ in range(8)]
    for number, (tensor, _) in enumerate(made[::2]):
        tensor.data.fill_(number)
    homes.trim()
    homes.look()
    for tensor, lease in made[1::2]:
        disk.write(lease, torch.full_like(tensor, 9).numpy().tobytes())
    for tensor, lease in made:
        assert disk.read(lease) == tensor.numpy().tobytes()
    homes.close()


def test_ranges_of_the_cache_are_found(disk: Disk) -> None:
    disk.file.lease(4 << 20, "w")
    file = disk.file.files[0]
    assert list(seen_ranges(file.fd, PAGE_BYTES, file.end)) == []
    touched = [page * PAGE_BYTES for page in (3, 77, 78, 200)]
    for offset in touched:
        os.pwrite(file.fd, b"x", offset)
    found = list(seen_ranges(file.fd, PAGE_BYTES, file.end))
    for offset in touched:
        assert any(start <= offset < start + nbytes for start, nbytes in found)
    assert sum(nbytes for _, nbytes in found) <= 2 * len(touched) * page_sums.LEAF_BYTES


def test_a_table_keeps_its_sums_while_it_grows() -> None:
    table = SumTable()
    address = table.at(0)
    for end in (PAGE_BYTES, 100 << 20, 1 << 34):
        table.grow(end)
        last = (ctypes.c_uint32 * 1).from_address(table.at(end - 1))
        assert last[0] == 0
        last[0] = 7
    assert table.at(0) == address
    assert (ctypes.c_uint32 * 1).from_address(table.at(PAGE_BYTES - 1))[0] == 7
    table.forget(PAGE_BYTES - 1, 2)
    assert (ctypes.c_uint32 * 2).from_address(address)[:] == [0, 0]


@pytest.mark.parametrize("native", [True, False])
def test_no_sum_is_that_of_an_unknown_page(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setenv(NATIVE_VARIABLE, "0")
    memory = Arena(9 * PAGE_BYTES)
    memory.tensor(0, torch.uint8, (9 * PAGE_BYTES,), (1,)).random_(0, 256)
    before = page_sums.of_pages(memory.address, 9)
    assert before.all()
    memory.tensor(4 * PAGE_BYTES, torch.uint8, (1,), (1,)).bitwise_xor_(1)
    after = page_sums.of_pages(memory.address, 9)
    assert (before != after).nonzero()[0].tolist() == [4]


def test_without_direct_io_they_are_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path, FileIO.BUFFERED, 1)
    told = sums_refusal(disk.file, disk.transfers)
    assert told is not None
    assert "page cache" in told
    disk.close()


def test_a_kernel_that_cannot_tell_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    disk = Disk(tmp_path, FileIO.AUTO, 1)
    monkeypatch.setattr("zcompile.runtime.libc.pages_seen", refuse)
    told = sums_refusal(disk.file, disk.transfers)
    assert told is not None
    assert "cachestat" in told or "page cache" in told
    disk.close()
