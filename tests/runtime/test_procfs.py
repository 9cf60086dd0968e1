"""Readings of the kernel agree with what the process did."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from zcompile.runtime import libc
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.mapping import FileMapper
from zcompile.runtime.procfs import FilePages, disk_traffic, memory_use, resident_bytes_of

NBYTES = 24 << 20


def test_direct_writes_and_reads_are_counted_as_disk_traffic(extent_file: ExtentFile) -> None:
    lease = extent_file.lease(NBYTES, "w")
    fd = extent_file.files[0].direct_fd
    assert fd is not None, extent_file.direct_refusal
    mapping = FileMapper().map(lease)
    block = memoryview(mapping.open(lambda _: None)).cast("B")[: 1 << 20]
    block[:] = b"x" * len(block)
    before = disk_traffic()
    for at in range(0, NBYTES, len(block)):
        os.pwritev(fd, [block], lease.offset + at)
    written = disk_traffic().since(before)
    assert NBYTES <= written.write_bytes <= NBYTES + (2 << 20)


def test_touched_pages_of_a_file_are_resident_until_trimmed(extent_file: ExtentFile) -> None:
    mapper = FileMapper()
    mapping = mapper.map(extent_file.lease(NBYTES, "w"))
    buffer = mapping.open(lambda _: None)
    pages = FilePages()
    idle, before = pages.resident_bytes(), memory_use()
    memoryview(buffer).cast("B")[:] = b"x" * NBYTES
    after = memory_use()
    assert after.file_bytes - before.file_bytes == pytest.approx(NBYTES, abs=1 << 20)
    assert pages.resident_bytes() - idle == pytest.approx(NBYTES, abs=1 << 20)
    assert resident_bytes_of(extent_file.files[0].path) == NBYTES
    mapper.trim()
    assert resident_bytes_of(extent_file.files[0].path) == 0
    assert pages.resident_bytes() - idle < 1 << 20
    assert memoryview(buffer).cast("B")[NBYTES - 1] == ord("x")
    pages.close()


def test_anonymous_memory_is_counted_apart() -> None:
    before = memory_use()
    address = libc.map_anonymous(NBYTES)
    ctypes.memset(address, 1, NBYTES)
    after = memory_use()
    libc.unmap(address, NBYTES)
    assert after.anonymous_bytes - before.anonymous_bytes == pytest.approx(NBYTES, abs=1 << 20)
    assert after.resident_bytes == sum(
        (after.anonymous_bytes, after.file_bytes, after.shared_bytes)
    )


def test_a_file_that_is_not_mapped_is_not_resident() -> None:
    assert resident_bytes_of(Path("/nowhere")) == 0
