"""Checksums: of every block, written aside and compared when it is read."""

from __future__ import annotations

import ctypes
import errno
import os
import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.native.files import PAGE, Memory, carried_out, engine, opened, whole
from tests.native.test_io import WAYS, kind_of
from zcompile.runtime.native import Native, NativeError
from zcompile.runtime.native_io import FilePair, IOChannel, IOSpan, NativeIO, Sums

UNIT = 2 * PAGE


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


@pytest.fixture(params=WAYS)
def io(request: pytest.FixtureRequest, native: Native) -> Generator[NativeIO, None, None]:
    way: str = request.param
    io = engine(
        native,
        kind_of(way, native),
        block_bytes=2 * UNIT,
        buffer_bytes=UNIT,
        buffered=way == "buffered",
    )
    yield io
    io.close()


@pytest.fixture
def file(tmp_path: Path) -> Generator[FilePair, None, None]:
    with opened(tmp_path / "file", 100 * PAGE) as file:
        yield file


SIZES = [1, PAGE, UNIT - 1, UNIT, UNIT + 1, 3 * UNIT + PAGE + 5, 7 * UNIT + 1]


@pytest.mark.parametrize("shift", [0, 8])
@pytest.mark.parametrize("room", [False, True])
@pytest.mark.parametrize("nbytes", SIZES)
def test_every_sum_is_that_of_its_piece(
    io: NativeIO, file: FilePair, crc32c: Any, nbytes: int, room: bool, shift: int
) -> None:
    memory = Memory(20 * UNIT)
    content = random.Random(nbytes).randbytes(nbytes)
    memory.put(shift, content)
    room_bytes = whole(nbytes) if room else nbytes
    span = IOSpan(UNIT, memory.address + shift, nbytes, room_bytes, whole(nbytes))
    sums = (ctypes.c_uint32 * (-(-nbytes // UNIT) + 1))()
    sums[-1] = 77
    kept = Sums(ctypes.addressof(sums), UNIT)
    assert carried_out(io, IOChannel.WRITE, [span], [file], sums=kept).error == 0
    pieces = [content[at : at + UNIT] for at in range(0, nbytes, UNIT)]
    assert list(sums) == [*(crc32c(0, piece, len(piece), 1) for piece in pieces), 77]
    memory.put(shift, bytes(nbytes))
    assert carried_out(io, IOChannel.READ, [span], [file], sums=kept).error == 0
    assert memory.get(shift, nbytes) == content
    damaged = nbytes // 2
    os.pwrite(file.fd, bytes([content[damaged] ^ 1]), UNIT + damaged)
    os.fsync(file.fd)
    result = carried_out(io, IOChannel.READ, [span], [file], sums=kept)
    assert result.error == errno.EBADMSG
    assert result.offset <= UNIT + damaged < result.offset + result.nbytes


def test_the_spans_of_one_request_have_their_sums_in_order(
    io: NativeIO, file: FilePair, crc32c: Any
) -> None:
    memory = Memory(20 * UNIT)
    memory.put(0, random.Random(1).randbytes(20 * UNIT))
    sizes = [UNIT + 1, 5, 0, 2 * UNIT]
    spans = [
        IOSpan(3 * i * UNIT, memory.address + 3 * i * UNIT, nbytes, nbytes, nbytes)
        for i, nbytes in enumerate(sizes)
    ]
    sums = (ctypes.c_uint32 * 5)()
    kept = Sums(ctypes.addressof(sums), UNIT)
    assert carried_out(io, IOChannel.WRITE, spans, [file], sums=kept).error == 0
    expected: list[int] = []
    for i, nbytes in enumerate(sizes):
        data = memory.get(3 * i * UNIT, nbytes)
        pieces = [data[at : at + UNIT] for at in range(0, nbytes, UNIT)]
        expected += [crc32c(0, piece, len(piece), 1) for piece in pieces]
    assert list(sums) == expected


@pytest.mark.parametrize(("offset", "unit"), [(PAGE, UNIT), (0, 100), (0, 3 * PAGE)])
def test_sums_that_do_not_fit_the_blocks_are_refused(
    io: NativeIO, file: FilePair, offset: int, unit: int
) -> None:
    memory = Memory(UNIT)
    span = IOSpan(offset, memory.address, 1, 1, 1)
    sums = (ctypes.c_uint32 * 1)()
    with pytest.raises(NativeError) as raised:
        io.submit(IOChannel.WRITE, [span], [file], sums=Sums(ctypes.addressof(sums), unit))
    assert raised.value.errno == errno.EINVAL
