"""Checksums: of every page, kept aside when it is written and compared when it is read."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.native.files import PAGE, Memory, carried_out, engine, opened, whole
from tests.native.test_io import WAYS, kind_of
from zcompile.runtime.native import Native
from zcompile.runtime.native_io import FilePair, IOCall, IOChannel, IOResult, IOSpan, NativeIO

NUM_PAGES = 24


def reference(data: bytes, crc: int = 0) -> int:
    """Return CRC-32C bit by bit, as its definition says."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.fixture
def crc32c(native: Native) -> Any:
    arguments = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int32]
    return native.function("zinf_crc32c", arguments, ctypes.c_uint32)


@pytest.mark.parametrize("portable", [False, True])
def test_the_known_value(crc32c: Any, portable: bool) -> None:
    assert crc32c(0, b"123456789", 9, portable) == 0xE3069283


@pytest.mark.parametrize("portable", [False, True])
def test_any_data_in_any_pieces(crc32c: Any, portable: bool) -> None:
    rng = random.Random(0)
    for nbytes in (0, 1, 7, 8, 9, 63, 64, 65, 1000):
        data = rng.randbytes(nbytes)
        cut = rng.randrange(nbytes + 1)
        first = crc32c(0, data[:cut], cut, portable)
        assert first == reference(data[:cut])
        assert crc32c(first, data[cut:], nbytes - cut, portable) == reference(data)


def sum_of(page: bytes) -> int:
    return reference(page) or 1


def test_sums_of_pages(native: Native) -> None:
    page_sums = native.function(
        "zinf_page_sums", [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p], None
    )
    data = random.Random(0).randbytes(7 * PAGE)
    for num_pages in range(8):
        sums = (ctypes.c_uint32 * 8)(*[77] * 8)
        page_sums(data, num_pages, ctypes.addressof(sums))
        assert list(sums) == [
            *(sum_of(data[at * PAGE : (at + 1) * PAGE]) for at in range(num_pages)),
            *[77] * (8 - num_pages),
        ]


@pytest.fixture(params=WAYS)
def io(request: pytest.FixtureRequest, native: Native) -> Generator[NativeIO, None, None]:
    way: str = request.param
    io = engine(
        native,
        kind_of(way, native),
        block_bytes=4 * PAGE,
        buffer_bytes=2 * PAGE,
        buffered=way == "buffered",
    )
    yield io
    io.close()


@pytest.fixture
def file(tmp_path: Path) -> Generator[FilePair, None, None]:
    with opened(tmp_path / "file", NUM_PAGES * PAGE) as file:
        yield file


class Table:
    """The sums of every page of a file, unknown at first, and memory to move."""

    def __init__(self, io: NativeIO, file: FilePair) -> None:
        self._io = io
        self._file = file
        self.sums = (ctypes.c_uint32 * NUM_PAGES)()
        self.memory = Memory(NUM_PAGES * PAGE)

    def move(
        self, channel: IOChannel, offset: int, nbytes: int, shift: int = 0, *, room: bool = True
    ) -> IOResult:
        rooms = whole(offset % PAGE + nbytes) - offset % PAGE if room else nbytes
        at = ctypes.addressof(self.sums) + offset // PAGE * 4
        address = self.memory.address + shift
        span = IOSpan(offset, address, nbytes, rooms, rooms, sums=at)
        return carried_out(self._io, channel, [span], [self._file])

    def damage(self, offset: int) -> None:
        """Flip a bit on the disk, past the page cache, as a faulty device would."""
        os.fsync(self._file.fd)
        page = mmap.mmap(-1, PAGE)
        start = offset // PAGE * PAGE
        os.preadv(self._file.direct_fd, [page], start)
        page[offset - start] ^= 1
        os.pwritev(self._file.direct_fd, [page], start)


@pytest.fixture
def table(io: NativeIO, file: FilePair) -> Table:
    return Table(io, file)


SIZES = [PAGE, PAGE + 1, 2 * PAGE, 5 * PAGE + 100, 9 * PAGE]


@pytest.mark.parametrize("shift", [0, 8])
@pytest.mark.parametrize("nbytes", SIZES)
def test_a_flipped_bit_is_found_in_every_page(
    table: Table, io: NativeIO, nbytes: int, shift: int
) -> None:
    content = random.Random(nbytes).randbytes(nbytes)
    start = 3 * PAGE
    for damaged in range(0, nbytes // PAGE * PAGE, PAGE):
        table.memory.put(shift, content)
        assert table.move(IOChannel.WRITE, start, nbytes, shift).error == 0
        table.memory.put(shift, bytes(nbytes))
        assert table.move(IOChannel.READ, start, nbytes, shift).error == 0
        assert table.memory.get(shift, nbytes) == content
        table.damage(start + damaged + 77)
        result = table.move(IOChannel.READ, start, nbytes, shift)
        if io.status().buffered_because:  # others may have written there: nobody can tell
            assert result.error == 0
            continue
        assert (result.error, result.file) == (errno.EBADMSG, 0)
        assert (result.offset, result.nbytes) == (start + damaged, PAGE)


def test_sums_are_those_of_whole_pages(table: Table) -> None:
    content = random.Random(0).randbytes(6 * PAGE)
    table.memory.put(0, content)
    assert table.move(IOChannel.WRITE, PAGE, 6 * PAGE).error == 0
    assert list(table.sums) == [
        0,
        *(sum_of(content[at : at + PAGE]) for at in range(0, 6 * PAGE, PAGE)),
        *[0] * (NUM_PAGES - 7),
    ]


def test_pages_that_are_written_in_part_have_no_known_sum(table: Table) -> None:
    assert table.move(IOChannel.WRITE, 0, 6 * PAGE).error == 0
    assert all(table.sums[:6])
    assert table.move(IOChannel.WRITE, PAGE + 100, 3 * PAGE, room=False).error == 0
    assert [bool(each) for each in table.sums[:6]] == [True, False, True, True, False, True]
    table.damage(PAGE + 7)
    assert table.move(IOChannel.READ, 0, 6 * PAGE).error == 0, "what is unknown is taken as it is"
    assert all(table.sums[:6]), "and known from there on"


def test_reading_in_part_looks_at_whole_pages_only(table: Table) -> None:
    assert table.move(IOChannel.WRITE, 0, 4 * PAGE).error == 0
    table.damage(7)
    table.damage(3 * PAGE + 5)
    assert table.move(IOChannel.READ, 100, 3 * PAGE, room=False).error == 0


def test_what_is_written_through_the_page_cache_is_no_alarm(table: Table, file: FilePair) -> None:
    content = random.Random(0).randbytes(4 * PAGE)
    table.memory.put(0, content)
    assert table.move(IOChannel.WRITE, 0, 4 * PAGE).error == 0
    os.pwrite(file.fd, b"other", PAGE + 9)
    assert table.move(IOChannel.READ, 0, 4 * PAGE).error == 0
    changed = content[: PAGE + 9] + b"other" + content[PAGE + 14 :]
    assert table.memory.get(0, 4 * PAGE) == changed
    assert table.sums[1] == sum_of(changed[PAGE : 2 * PAGE]), "the sum is renewed"


def test_a_write_that_fails_leaves_no_sum(table: Table, io: NativeIO) -> None:
    assert table.move(IOChannel.WRITE, 0, 2 * PAGE).error == 0

    def fail(after: bool, call: IOCall) -> None:
        if not after:
            call.result = -errno.EIO

    io.inject(fail)
    assert table.move(IOChannel.WRITE, 0, 2 * PAGE).error == errno.EIO
    io.inject(None)
    assert list(table.sums[:2]) == [0, 0]


def test_short_calls_have_sums_too(table: Table, io: NativeIO) -> None:
    def shorten(after: bool, call: IOCall) -> None:
        if not after:
            call.nbytes = min(call.nbytes, PAGE)

    content = random.Random(0).randbytes(9 * PAGE)
    table.memory.put(0, content)
    io.inject(shorten)
    assert table.move(IOChannel.WRITE, 0, 9 * PAGE).error == 0
    assert table.sums[8] == sum_of(content[8 * PAGE :])
    assert table.move(IOChannel.READ, 0, 9 * PAGE).error == 0
    io.inject(None)
