"""The engine itself: every way of moving bytes does the same, to the byte."""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.native.files import PAGE, Memory, carried_out, engine, opened, whole
from zcompile.runtime import libc
from zcompile.runtime.native import Native, NativeError
from zcompile.runtime.native_io import FilePair, IOChannel, IOKind, IOSpan, NativeIO, uring_refusal

LARGEST = 16_385
SLOT = 5 * PAGE
BATCH = 128
WAYS = ["uring", "threads", "buffered"]


def kind_of(way: str, native: Native) -> IOKind:
    """Return io_uring only where it works: elsewhere its threads take its place."""
    works = uring_refusal(native) is None
    return IOKind.URING if way == "uring" and works else IOKind.THREADS


@pytest.fixture(params=WAYS)
def io(request: pytest.FixtureRequest, native: Native) -> Generator[NativeIO, None, None]:
    way: str = request.param
    io = engine(native, kind_of(way, native), buffered=way == "buffered", register_buffers=True)
    yield io
    io.close()


@pytest.fixture
def file(tmp_path: Path) -> Generator[FilePair, None, None]:
    with opened(tmp_path / "file", 2 * BATCH * SLOT) as file:
        yield file


def span_in_slot(memory: Memory, slot: int, nbytes: int, shift: int, *, room: bool) -> IOSpan:
    room_bytes = whole(nbytes) if room else nbytes
    return IOSpan(slot * SLOT, memory.address + slot * SLOT + shift, nbytes, room_bytes, SLOT)


ROOMS = [(0, True), (0, False), (8, False)]


@pytest.mark.parametrize(("shift", "room"), ROOMS)
def test_sizes_around_pages_and_in_between(
    io: NativeIO, file: FilePair, shift: int, room: bool
) -> None:
    near = [page * PAGE + byte for page in range(5) for byte in (-2, -1, 0, 1, 2)]
    sizes = [nbytes for nbytes in near if 1 <= nbytes <= LARGEST]
    assert_come_back(io, file, [*sizes, *range(3, LARGEST, 199)], shift, room=room)


@pytest.mark.slow
@pytest.mark.parametrize(("shift", "room"), ROOMS)
def test_every_size_from_1_to_16385_bytes(
    io: NativeIO, file: FilePair, shift: int, room: bool
) -> None:
    assert_come_back(io, file, list(range(1, LARGEST + 1)), shift, room=room)


def assert_come_back(
    io: NativeIO, file: FilePair, all_sizes: list[int], shift: int, *, room: bool
) -> None:
    source, target = Memory((BATCH + 1) * SLOT), Memory((BATCH + 1) * SLOT)
    content = random.Random(shift).randbytes(source.nbytes)
    source.put(0, content)
    for first in range(0, len(all_sizes), BATCH):
        sizes = all_sizes[first : first + BATCH]
        target.put(0, b"\xa5" * target.nbytes)
        for channel, memory in ((IOChannel.WRITE, source), (IOChannel.READ, target)):
            spans = [
                span_in_slot(memory, slot, nbytes, shift, room=room)
                for slot, nbytes in enumerate(sizes)
            ]
            assert carried_out(io, channel, spans, [file]).error == 0
        for slot, nbytes in enumerate(sizes):
            start = slot * SLOT + shift
            assert target.get(start, nbytes) == content[start : start + nbytes], nbytes
            room_end = start + (whole(nbytes) if room else nbytes)
            assert set(target.get(room_end, (slot + 1) * SLOT - room_end + shift)) <= {0xA5}


def test_bytes_of_others_in_the_same_page_stay(io: NativeIO, file: FilePair) -> None:
    os.pwrite(file.fd, b"\x11" * SLOT, 0)
    os.fsync(file.fd)
    memory = Memory(SLOT)
    memory.put(0, b"\x22" * SLOT)
    rng = random.Random(0)
    expected = bytearray(b"\x11" * SLOT)
    for _ in range(100):
        offset = rng.randrange(SLOT)
        nbytes = rng.randrange(SLOT - offset + 1)
        span = IOSpan(offset, memory.address + rng.randrange(0, 64, 8), nbytes, nbytes, nbytes)
        nbytes = min(nbytes, SLOT - 64)
        span = IOSpan(offset, span.address, nbytes, nbytes, nbytes)
        assert carried_out(io, IOChannel.WRITE, [span], [file]).error == 0
        expected[offset : offset + nbytes] = b"\x22" * nbytes
        assert os.pread(file.fd, SLOT, 0) == expected


def test_spans_go_to_the_files_that_they_name(io: NativeIO, tmp_path: Path) -> None:
    num_files, num_spans, nbytes = 3, 40, 2 * PAGE
    source, target = Memory(num_spans * nbytes), Memory(num_spans * nbytes)
    content = random.Random(1).randbytes(num_spans * nbytes)
    source.put(0, content)
    with ExitStack() as stack:
        paths = [tmp_path / f"stripe{i}" for i in range(num_files)]
        files = [stack.enter_context(opened(path, 40 * PAGE)) for path in paths]
        for channel, memory in ((IOChannel.WRITE, source), (IOChannel.READ, target)):
            spans = [
                IOSpan(
                    i // num_files * nbytes,
                    memory.address + i * nbytes,
                    nbytes,
                    nbytes,
                    nbytes,
                    file=i % num_files,
                )
                for i in range(num_spans)
            ]
            assert carried_out(io, channel, spans, files).error == 0
        parts = [path.read_bytes() for path in paths]
    assert target.get() == content
    for i in range(num_spans):
        place = i // num_files * nbytes
        written = parts[i % num_files][place : place + nbytes]
        assert written == content[i * nbytes : (i + 1) * nbytes]


def test_an_error_names_the_file(io: NativeIO, tmp_path: Path) -> None:
    memory = Memory(2 * PAGE)
    with ExitStack() as stack:
        sizes = (2 * PAGE, PAGE)  # the second file is too short
        opened_files = (opened(tmp_path / str(size), size) for size in sizes)
        files = [stack.enter_context(each) for each in opened_files]
        spans = [
            IOSpan(PAGE, memory.address + at * PAGE, PAGE, PAGE, PAGE, file=at) for at in (0, 1)
        ]
        result = carried_out(io, IOChannel.READ, spans, files)
    assert (result.error, result.file, result.offset) == (errno.ENODATA, 1, PAGE)


def test_a_span_of_no_file_is_refused(io: NativeIO, file: FilePair) -> None:
    memory = Memory(PAGE)
    with pytest.raises(NativeError) as raised:
        io.submit(IOChannel.READ, [IOSpan(0, memory.address, 1, 1, 1, file=1)], [file])
    assert raised.value.errno == errno.EINVAL


def test_memory_is_copied(io: NativeIO) -> None:
    nbytes = (9 << 20) + 1
    source, target = Memory(nbytes), Memory(nbytes + 1)
    source.put(0, random.Random(2).randbytes(nbytes))
    for channel in (IOChannel.COPY_IN, IOChannel.COPY_OUT):
        target.put(0, bytes(nbytes))
        result = carried_out(io, channel, [IOSpan(source.address, target.address + 1, nbytes)])
        assert (result.error, result.moved_bytes) == (0, nbytes)
        assert target.get(1, nbytes) == source.get(0, nbytes)


def test_one_buffer_serves_any_number_of_blocks(native: Native, file: FilePair) -> None:
    for way in WAYS:
        io = engine(
            native,
            kind_of(way, native),
            depth=8,
            num_buffers=1,
            buffer_bytes=PAGE,
            register_buffers=True,
        )
        memory = Memory(64 * PAGE)
        content = random.Random(3).randbytes(50 * PAGE)
        memory.put(8, content)
        span = IOSpan(0, memory.address + 8, len(content), len(content), len(content))
        assert carried_out(io, IOChannel.WRITE, [span], [file]).error == 0
        memory.put(8, bytes(len(content)))
        assert carried_out(io, IOChannel.READ, [span], [file]).error == 0
        assert memory.get(8, len(content)) == content
        status = io.status()
        assert status.buffer_bytes == 2 * PAGE, "one for each direction"
        if status.kind is IOKind.URING:  # the kernel may refuse, and then says why
            assert status.registered_because is None or "refuses" in status.registered_because
        else:
            assert status.registered_because == "only io_uring can register them"
        io.close()


def test_the_engine_says_what_it_does(native: Native) -> None:
    io = engine(native, IOKind.THREADS, buffered=True)
    status = io.status()
    assert (status.kind, status.num_threads, status.num_active) == (IOKind.THREADS, 0, 0)
    assert status.buffered_because == "it was asked for"
    assert status.registered_because == "it was not asked for"
    io.close()


BAD: dict[str, tuple[IOChannel, IOSpan, bool]] = {
    "no file": (IOChannel.READ, IOSpan(0, 4096, 1, 1, 1), False),
    "less room in memory than bytes": (IOChannel.READ, IOSpan(0, 4096, 2, 1, 2), True),
    "less room in the file than bytes": (IOChannel.WRITE, IOSpan(0, 4096, 2, 2, 1), True),
    "beyond the end of memory": (IOChannel.READ, IOSpan(0, 2**64 - 1, 2, 2, 2), True),
    "a file for copies of memory": (IOChannel.COPY_IN, IOSpan(4096, 8192, 1), True),
}


@pytest.mark.parametrize("name", BAD)
def test_a_request_that_makes_no_sense_is_refused(io: NativeIO, file: FilePair, name: str) -> None:
    channel, span, with_file = BAD[name]
    with pytest.raises(NativeError) as raised:
        io.submit(channel, [span], [file] if with_file else [])
    assert raised.value.errno == errno.EINVAL
    assert io.reap() == []


@pytest.mark.parametrize("depth", [0, 257])
@pytest.mark.parametrize("block_bytes", [PAGE, 100, (1 << 30) + PAGE])
def test_an_engine_that_makes_no_sense_is_refused(
    native: Native, depth: int, block_bytes: int
) -> None:
    with pytest.raises(NativeError) as raised:
        engine(native, IOKind.THREADS, depth=depth, block_bytes=block_bytes)
    assert raised.value.errno == errno.EINVAL


@pytest.mark.slow
def test_more_than_2_gib_in_one_request(native: Native, tmp_path: Path) -> None:
    """The memory is 64 MiB mapped again and again, so that the test needs no more."""
    unit = 64 << 20
    total = (2 << 30) + unit + 4099
    pattern = random.Random(4).randbytes(unit)
    with opened(tmp_path / "file", whole(total)) as file:
        for way in WAYS[:2]:
            io = engine(native, kind_of(way, native), block_bytes=4 << 20)
            for channel in (IOChannel.WRITE, IOChannel.READ):
                fd = os.memfd_create("memory")
                os.pwrite(fd, pattern if channel is IOChannel.WRITE else bytes(unit), 0)
                count = total // unit + 1
                address = libc.reserve(count * unit)
                for i in range(count):
                    libc.map_file_at(address + i * unit, fd, 0, unit)
                span = IOSpan(0, address, total, whole(total), whole(total))
                result = carried_out(io, channel, [span], [file])
                assert (result.error, result.moved_bytes) == (0, whole(total))
                libc.unmap(address, count * unit)
                with mmap.mmap(fd, unit) as view:
                    assert view[:] == pattern
                os.close(fd)
            io.close()
            os.pwrite(file.fd, bytes(whole(total) - (2 << 30)), 2 << 30)
