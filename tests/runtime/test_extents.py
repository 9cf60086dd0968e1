"""Extents of the run's file: aligned, never sparse, on lease while anybody refers to them."""

from __future__ import annotations

import errno
import gc
import json
import os
import stat
import threading

import pytest

from zcompile.ir import PAGE_BYTES
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.folder import RunFolder


def test_an_extent_is_aligned_and_has_room_for_its_bytes(extent_file: ExtentFile) -> None:
    leases = [extent_file.lease(nbytes, "w") for nbytes in (0, 1, 4096, 4097, 3 << 20)]
    assert [lease.capacity for lease in leases] == [4096, 4096, 4096, 8192, 3 << 20]
    assert all(lease.offset % PAGE_BYTES == 0 for lease in leases)
    ends = [lease.offset + lease.capacity for lease in leases]
    starts = [lease.offset for lease in leases]
    assert starts[0] == PAGE_BYTES, "the first page is the header"
    assert starts[1:] == ends[:-1]


def test_the_file_is_private_never_sparse_and_says_what_it_is(extent_file: ExtentFile) -> None:
    extent_file.lease(5 << 20, "w")
    status = extent_file.files[0].path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == extent_file.size_bytes
    assert status.st_blocks * 512 >= status.st_size
    header = json.loads(extent_file.files[0].path.read_bytes()[:PAGE_BYTES])
    assert header == {
        "magic": "zinf extents",
        "version": 1,
        "page_bytes": PAGE_BYTES,
        "payload_start": PAGE_BYTES,
    }


def test_a_released_extent_is_leased_again_and_the_file_stays_small(
    extent_file: ExtentFile,
) -> None:
    size_bytes = extent_file.size_bytes
    for _ in range(100):
        extent_file.lease(900_000, "gradient").release()
    assert extent_file.size_bytes <= size_bytes + (1 << 20)


def test_releasing_twice_takes_nothing_from_the_next_holder(extent_file: ExtentFile) -> None:
    first = extent_file.lease(4096, "a")
    first.release()
    second = extent_file.lease(4096, "b")
    first.release()
    third = extent_file.lease(4096, "c")
    assert second.offset == first.offset
    assert third.offset != second.offset


def test_an_extent_is_on_lease_while_anybody_holds_it(extent_file: ExtentFile) -> None:
    lease = extent_file.lease(4096, "a")
    holders = [lease]
    del lease
    assert extent_file.leased_bytes == 4096
    holders.clear()
    assert extent_file.leased_bytes == 0


def test_the_collector_may_end_a_lease_while_another_is_made(extent_file: ExtentFile) -> None:
    class Cycle:
        def __init__(self, lease: Lease) -> None:
            self.lease = lease
            self.me = self

    threshold = gc.get_threshold()
    gc.set_threshold(1)  # a collection at nearly every allocation, also under the lock
    try:
        for _ in range(200):
            Cycle(extent_file.lease(4096, "a"))
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert extent_file.leased_bytes == 0


def test_threads_get_extents_of_their_own(extent_file: ExtentFile) -> None:
    leases: list[Lease] = []

    def take() -> None:
        for nbytes in range(1, 200):
            leases.append(extent_file.lease(nbytes * 100, "w"))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pages = [
        page
        for lease in leases
        for page in range(lease.offset, lease.offset + lease.capacity, PAGE_BYTES)
    ]
    assert len(pages) == len(set(pages))


def test_a_forked_child_takes_and_frees_nothing(extent_file: ExtentFile) -> None:
    lease = extent_file.lease(4096, "a")
    child = os.fork()
    if child == 0:
        del lease
        try:
            extent_file.lease(4096, "b")
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert extent_file.leased_bytes == lease.capacity


def test_direct_descriptor_or_the_reason_why_not(extent_file: ExtentFile) -> None:
    assert (extent_file.files[0].direct_fd is None) == (extent_file.direct_refusal is not None)


@pytest.mark.parametrize(
    ("code", "cause"), [(errno.ENOSPC, "ENOSPC"), (errno.EFBIG, r"EFBIG\); .*ulimit -f")]
)
def test_a_full_disk_names_file_tensor_and_remedy(
    code: int, cause: str, extent_file: ExtentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of a file is met in the same way."""
    asked: list[int] = []

    def full(_fd: int, _offset: int, nbytes: int) -> None:
        asked.append(nbytes)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = extent_file.size_bytes
    with pytest.raises(StorageError, match=cause) as caught:
        extent_file.lease(10_000, "layers.0.weight")
    error = caught.value
    assert error.errno == code
    assert error.filename == str(extent_file.files[0].path)
    assert (error.offset, error.nbytes, error.label) == (before, 12_288, "layers.0.weight")
    for part in ("allocate layers.0.weight", str(extent_file.files[0].path), "nvme_dir"):
        assert part in str(error)
    assert asked == [1 << 20, 12_288], "a slab, then just what is needed"
    assert extent_file.files[0].path.stat().st_size == before
    monkeypatch.undo()
    assert extent_file.lease(10_000, "layers.0.weight").offset == before


def test_a_small_disk_is_used_to_the_last_page(
    extent_file: ExtentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_bytes = (8 << 20) + 5000
    allocate = os.posix_fallocate

    def allocate_within_the_disk(fd: int, offset: int, nbytes: int) -> None:
        if offset + nbytes > disk_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", allocate_within_the_disk)
    leases: list[Lease] = []
    with pytest.raises(StorageError, match="ENOSPC"):
        leases.extend(iter(lambda: extent_file.lease(700_000, "w"), None))
    assert sum(lease.capacity for lease in leases) > disk_bytes - 2 * 700_000
    leases.pop()
    leases.append(extent_file.lease(700_000, "w"))


def test_a_vanished_file_is_noticed(extent_file: ExtentFile) -> None:
    extent_file.files[0].path.unlink()
    with pytest.raises(StorageError, match=r"lease w: .*ENOENT.*vanished") as caught:
        extent_file.lease(1, "w")
    assert caught.value.errno == errno.ENOENT


def test_nothing_is_leased_after_closing(extent_file: ExtentFile) -> None:
    extent_file.close()
    extent_file.close()
    with pytest.raises(StorageError, match="EBADF"):
        extent_file.lease(1, "w")


def test_the_descriptors_close_with_the_last_reference(extent_file: ExtentFile) -> None:
    file = ExtentFile(RunFolder.create(extent_file.files[0].folder.path.parent))
    lease = file.lease(1, "w")
    fd = file.files[0].fd
    path = file.files[0].path
    del file
    os.fstat(fd)  # the lease still refers to the file
    del lease
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert not path.exists()
