"""The queues of the engine: order, cancellation, faults, ends, and nothing left behind."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.native.files import PAGE, SECONDS, Memory, carried_out, engine, opened
from tests.native.test_io import kind_of
from zcompile.runtime.native import Native, NativeError
from zcompile.runtime.native_io import FilePair, IOCall, IOChannel, IOSpan, NativeIO

NUM_PAGES = 64


@pytest.fixture
def file(tmp_path: Path) -> Generator[FilePair, None, None]:
    with opened(tmp_path / "file", NUM_PAGES * PAGE) as file:
        yield file


@pytest.fixture(params=["uring", "threads"])
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def narrow(native: Native, way: str) -> Generator[NativeIO, None, None]:
    """An engine that has one page under way at a time."""
    io = engine(native, kind_of(way, native), depth=1, block_bytes=PAGE, buffer_bytes=PAGE)
    yield io
    io.close()


class Gate:
    """Holds the first call until it is opened, and notes the page of every call."""

    def __init__(self, io: NativeIO) -> None:
        self.pages: list[int] = []
        self.reached = threading.Event()
        self.opened = threading.Event()
        io.inject(self)

    def __call__(self, after: bool, call: IOCall) -> None:
        if not after:
            self.pages.append(call.offset // PAGE)
            self.reached.set()
            assert self.opened.wait(SECONDS)


def pages(memory: Memory, first: int, count: int) -> list[IOSpan]:
    nbytes = count * PAGE
    return [IOSpan(first * PAGE, memory.address + first * PAGE, nbytes, nbytes, nbytes)]


@pytest.mark.parametrize("channel", [IOChannel.READ, IOChannel.WRITE])
def test_planned_requests_in_order_and_urgent_ones_first(
    narrow: NativeIO, file: FilePair, channel: IOChannel
) -> None:
    memory = Memory(NUM_PAGES * PAGE)
    gate = Gate(narrow)
    tickets = [narrow.submit(channel, pages(memory, 0, 2), [file])]
    assert gate.reached.wait(SECONDS)
    tickets.append(narrow.submit(channel, pages(memory, 10, 2), [file]))
    tickets.append(narrow.submit(channel, pages(memory, 20, 2), [file], urgent=True))
    tickets.append(narrow.submit(channel, pages(memory, 30, 1), [file], urgent=True))
    gate.opened.set()
    assert all(narrow.wait(ticket, SECONDS) for ticket in tickets)
    # A ring may have taken the second page of the first request before the urgent ones came.
    assert gate.pages in ([0, 20, 21, 30, 1, 10, 11], [0, 1, 20, 21, 30, 10, 11])
    assert sorted(result.ticket for result in narrow.reap()) == tickets


def test_the_channels_do_not_wait_for_each_other(narrow: NativeIO, file: FilePair) -> None:
    memory = Memory(NUM_PAGES * PAGE)
    opened_up = threading.Event()

    def hold_reads(after: bool, call: IOCall) -> None:
        if not after and call.channel == IOChannel.READ:
            assert opened_up.wait(SECONDS)

    narrow.inject(hold_reads)
    read = narrow.submit(IOChannel.READ, pages(memory, 0, 1), [file])
    written = narrow.submit(IOChannel.WRITE, pages(memory, 1, 1), [file])
    copied = narrow.submit(IOChannel.COPY_IN, [IOSpan(memory.address, memory.address + PAGE, 8)])
    assert narrow.wait(written, SECONDS)
    assert narrow.wait(copied, SECONDS)
    assert not narrow.wait(read, 0)
    opened_up.set()
    assert narrow.wait(read, SECONDS)


def test_a_cancelled_request_starts_no_further_block(narrow: NativeIO, file: FilePair) -> None:
    memory = Memory(NUM_PAGES * PAGE)
    gate = Gate(narrow)
    held = narrow.submit(IOChannel.READ, pages(memory, 0, 8), [file])
    assert gate.reached.wait(SECONDS)
    queued = narrow.submit(IOChannel.READ, pages(memory, 20, 2), [file])
    assert narrow.cancel(queued)
    assert narrow.wait(queued, SECONDS), "nothing of it was under way"
    assert narrow.cancel(held)
    assert not narrow.cancel(held)
    assert not narrow.wait(held, 0), "its first block still touches memory"
    gate.opened.set()
    assert narrow.wait(held, SECONDS)
    assert {result.error for result in narrow.reap()} == {errno.ECANCELED}
    assert set(gate.pages) <= {0, 1}
    assert not narrow.cancel(held)
    assert not narrow.cancel(12345)
    assert carried_out(narrow, IOChannel.READ, pages(memory, 0, 8), [file]).error == 0


Fault = Callable[[bool, IOCall], None]


def failing(code: int, page: int) -> Fault:
    def fault(after: bool, call: IOCall) -> None:
        if not after and call.offset // PAGE == page:
            call.result = -code

    return fault


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_error_says_which_block_failed(narrow: NativeIO, file: FilePair, code: int) -> None:
    memory = Memory(NUM_PAGES * PAGE)
    narrow.inject(failing(code, 5))
    result = carried_out(narrow, IOChannel.WRITE, pages(memory, 0, 10), [file])
    assert (result.error, result.offset, result.nbytes) == (code, 5 * PAGE, PAGE)
    assert result.moved_bytes == 5 * PAGE
    narrow.inject(None)
    assert carried_out(narrow, IOChannel.WRITE, pages(memory, 0, 10), [file]).error == 0


@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
def test_what_was_interrupted_is_done_again(narrow: NativeIO, file: FilePair, code: int) -> None:
    os.pwrite(file.fd, b"\x33" * 10 * PAGE, 0)
    os.fsync(file.fd)
    memory = Memory(NUM_PAGES * PAGE)

    def fault(after: bool, call: IOCall) -> None:
        if not after and call.serial % 3:
            call.result = -code

    narrow.inject(fault)
    assert carried_out(narrow, IOChannel.READ, pages(memory, 0, 10), [file]).error == 0
    assert memory.get(0, 10 * PAGE) == b"\x33" * 10 * PAGE


@pytest.mark.parametrize("after", [False, True])
def test_a_short_transfer_is_continued(
    native: Native, way: str, file: FilePair, after: bool
) -> None:
    """With ``after`` the call has moved everything but says that it has not."""
    io = engine(native, kind_of(way, native))
    content = os.urandom(20 * PAGE)
    memory = Memory(NUM_PAGES * PAGE)
    memory.put(0, content)

    def fault(is_after: bool, call: IOCall) -> None:
        if is_after and after and call.result > 1:
            call.result -= min(call.result - 1, 700)
        elif not is_after and not after:
            call.nbytes = max(call.nbytes // 2 // PAGE * PAGE, min(call.nbytes, PAGE))

    io.inject(fault)
    result = carried_out(io, IOChannel.WRITE, pages(memory, 0, 20), [file])
    assert (result.error, result.moved_bytes) == (0, 20 * PAGE)
    memory.put(0, bytes(20 * PAGE))
    assert carried_out(io, IOChannel.READ, pages(memory, 0, 20), [file]).error == 0
    assert memory.get(0, 20 * PAGE) == content
    io.close()


def test_a_file_that_ends_too_early(narrow: NativeIO, file: FilePair) -> None:
    os.ftruncate(file.fd, 3 * PAGE)
    memory = Memory(NUM_PAGES * PAGE)
    result = carried_out(narrow, IOChannel.READ, pages(memory, 0, 8), [file])
    assert (result.error, result.offset) == (errno.ENODATA, 3 * PAGE)


def test_a_retired_engine_finishes_and_refuses(narrow: NativeIO, file: FilePair) -> None:
    memory = Memory(NUM_PAGES * PAGE)
    gate = Gate(narrow)
    tickets = [narrow.submit(IOChannel.READ, pages(memory, i, 2), [file]) for i in range(20)]
    narrow.retire()
    with pytest.raises(NativeError) as raised:
        narrow.submit(IOChannel.READ, pages(memory, 0, 1), [file])
    assert raised.value.errno == errno.ESHUTDOWN
    gate.opened.set()
    assert all(narrow.wait(ticket, SECONDS) for ticket in tickets)
    assert [result.error for result in narrow.reap()] == [0] * 20


def test_closing_finishes_what_was_submitted(native: Native, way: str, file: FilePair) -> None:
    io = engine(native, kind_of(way, native), depth=2)
    memory = Memory(NUM_PAGES * PAGE)
    memory.put(0, b"\x44" * memory.nbytes)
    for first in range(0, NUM_PAGES, 4):
        io.submit(IOChannel.WRITE, pages(memory, first, 4), [file])
    io.close()
    io.close()
    assert os.pread(file.fd, NUM_PAGES * PAGE, 0) == memory.get()


def test_many_threads_submit_and_wait_at_once(native: Native, way: str, file: FilePair) -> None:
    io = engine(native, kind_of(way, native))
    memory = Memory(NUM_PAGES * PAGE)

    def submit() -> None:
        for i in range(200):
            ticket = io.submit(IOChannel.READ, pages(memory, i % NUM_PAGES, 1), [file])
            assert io.wait(ticket, SECONDS)

    callers = [threading.Thread(target=submit) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(SECONDS)
    assert [result.error for result in io.reap()] == [0] * 800
    io.close()


def test_a_forked_child_leaves_the_engine_alone(narrow: NativeIO, file: FilePair) -> None:
    memory = Memory(NUM_PAGES * PAGE)
    gate = Gate(narrow)
    ticket = narrow.submit(IOChannel.READ, pages(memory, 0, 4), [file])
    assert gate.reached.wait(SECONDS)
    child = os.fork()
    if child == 0:
        narrow.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    gate.opened.set()
    assert narrow.wait(ticket, SECONDS)


def resident_bytes() -> int:
    pages_held = int(Path("/proc/self/statm").read_text().split()[1])
    return pages_held * PAGE


def left_behind(io: NativeIO, file: FilePair, memory: Memory, num_requests: int) -> None:
    """Assert that requests leave no descriptor, thread or memory behind."""

    def run(count: int) -> None:
        for start in range(0, count, 100):
            tickets = [
                io.submit(channel, pages(memory, i % NUM_PAGES, 1), [file])
                for i in range(start, start + 50)
                for channel in (IOChannel.READ, IOChannel.WRITE)
            ]
            assert all(io.wait(ticket, SECONDS) for ticket in tickets)
            assert all(result.error == 0 for result in io.reap())

    run(1000)
    fds, tasks, resident = (
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
        resident_bytes(),
    )
    run(num_requests)
    assert len(os.listdir("/proc/self/fd")) == fds
    assert len(os.listdir("/proc/self/task")) == tasks
    # 100,000 requests of one word each would be more than this.
    assert resident_bytes() - resident < num_requests * 8 + (1 << 19)
    assert io.status().num_active == 0


def test_nothing_is_left_behind(native: Native, way: str, file: FilePair) -> None:
    io = engine(native, kind_of(way, native))
    left_behind(io, file, Memory(NUM_PAGES * PAGE), 2_000)
    io.close()


@pytest.mark.slow
def test_nothing_is_left_behind_by_100_000_requests(
    native: Native, way: str, file: FilePair
) -> None:
    io = engine(native, kind_of(way, native))
    left_behind(io, file, Memory(NUM_PAGES * PAGE), 100_000)
    io.close()


def test_a_closed_engine_leaves_nothing(native: Native, way: str, file: FilePair) -> None:
    memory = Memory(NUM_PAGES * PAGE)

    def once() -> tuple[int, int]:
        io = engine(native, kind_of(way, native))
        assert carried_out(io, IOChannel.READ, pages(memory, 0, 4), [file]).error == 0
        io.close()
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/maps"[:10]))

    first = once()
    assert [once() for _ in range(20)] == [first] * 20
