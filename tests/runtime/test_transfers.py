"""Copies between memory and file: every size and alignment, order, accounts, threads."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.runtime.conftest import USABLE
from zcompile.ir import PAGE_BYTES, Tier, page_aligned
from zcompile.runtime.arena import Arena
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.transfers import Transfers

STRIPED = True

BLOCK_BYTES = 2 * PAGE_BYTES
LARGEST = 16_385
SIZES = sorted({*range(1, LARGEST + 1, 127), 4095, 4096, 4097, 8191, 8192, 8193, 16_384, LARGEST})
GUARD = 0xA5
DIRECT = [io for io in USABLE if io is not FileIO.BUFFERED]


@pytest.fixture
def transfers(
    extent_file: ExtentFile, ledger: Ledger, io: FileIO
) -> Generator[Transfers, None, None]:
    transfers = Transfers(
        extent_file, ledger, block_bytes=BLOCK_BYTES, direct_bytes=BLOCK_BYTES, io=io
    )
    yield transfers
    transfers.close()


class Memory:
    """An arena whose bytes are written and read one by one."""

    def __init__(self, nbytes: int) -> None:
        self.arena = Arena(nbytes)
        self.address = self.arena.address

    def put(self, offset: int, content: bytes) -> None:
        ctypes.memmove(self.address + offset, content, len(content))

    def get(self, offset: int, nbytes: int) -> bytes:
        return ctypes.string_at(self.address + offset, nbytes)


def content_of(nbytes: int, seed: int = 0) -> bytes:
    return bytes((seed + 7 * i + i // 251) % 256 for i in range(nbytes))


@pytest.mark.parametrize("shift", [0, 1, 64])
@pytest.mark.parametrize("has_room", [False, True])
def test_every_size_comes_back(
    transfers: Transfers, extent_file: ExtentFile, shift: int, has_room: bool
) -> None:
    source, target = Memory(2 * LARGEST), Memory(2 * LARGEST)
    for nbytes in SIZES:
        content = content_of(nbytes, seed=nbytes)
        room = page_aligned(nbytes) if has_room else nbytes
        lease = extent_file.lease(nbytes, "w")
        source.put(shift, content)
        target.put(0, bytes([GUARD]) * 2 * LARGEST)
        at = source.address + shift
        transfers.write(lease, 0, at, nbytes, "w", capacity=room).wait()
        transfers.read(lease, 0, target.address + shift, nbytes, "w", capacity=room).wait()
        assert target.get(shift, nbytes) == content, nbytes
        assert set(target.get(shift + room, 100)) == {GUARD}, f"{nbytes}: wrote past its room"
        assert set(target.get(0, shift)) <= {GUARD}, f"{nbytes}: wrote before its start"
        lease.release()


@pytest.mark.parametrize("shift", [0, 3])
def test_pieces_of_one_extent_leave_their_neighbours_alone(
    transfers: Transfers, extent_file: ExtentFile, shift: int
) -> None:
    lease = extent_file.lease(LARGEST, "w")
    whole = content_of(LARGEST)
    memory = Memory(2 * LARGEST)
    memory.put(shift, whole)
    edges = [0, 100, 4096, 5000, 12_288, 12_289, LARGEST]
    pending = [
        transfers.write(lease, start, memory.address + shift + start, end - start, "w")
        for start, end in reversed(list(pairwise(edges)))
    ]
    for each in pending:
        each.wait()
    target = Memory(2 * LARGEST)
    for start, end in pairwise(edges):
        transfers.read(lease, start, target.address + start, end - start, "w").wait()
    assert target.get(0, LARGEST) == whole


def test_the_next_extent_is_not_touched(transfers: Transfers, extent_file: ExtentFile) -> None:
    first, second = extent_file.lease(100, "a"), extent_file.lease(100, "b")
    memory = Memory(2 * PAGE_BYTES)
    memory.put(0, content_of(100))
    memory.put(PAGE_BYTES, content_of(100, seed=9))
    transfers.write(second, 0, memory.address + PAGE_BYTES, 100, "b").wait()
    transfers.write(first, 0, memory.address + 8, 90, "a").wait()
    transfers.read(second, 0, memory.address, 100, "b").wait()
    assert memory.get(0, 100) == content_of(100, seed=9)


def test_many_copies_in_flight_at_once(transfers: Transfers, extent_file: ExtentFile) -> None:
    sizes = [1 + 997 * i for i in range(30)]
    source, target = Memory(30 << 15), Memory(30 << 15)
    leases = [extent_file.lease(nbytes, f"w{i}") for i, nbytes in enumerate(sizes)]
    for i, nbytes in enumerate(sizes):
        source.put(i << 15, content_of(nbytes, seed=i))
    for start, memory in ((transfers.write, source), (transfers.read, target)):
        pending = [
            start(lease, 0, memory.address + (i << 15), lease.nbytes, lease.label)
            for i, lease in enumerate(leases)
        ]
        for each in pending:
            each.wait()
    for i, nbytes in enumerate(sizes):
        assert target.get(i << 15, nbytes) == content_of(nbytes, seed=i)


def test_copies_of_memory(transfers: Transfers) -> None:
    source, target = Memory(LARGEST), Memory(LARGEST)
    for nbytes in (0, 1, 4096, LARGEST):
        source.put(0, content_of(nbytes, seed=nbytes))
        transfers.copy_in(source.address, target.address, nbytes).wait()
        assert target.get(0, nbytes) == content_of(nbytes, seed=nbytes)
        source.put(0, bytes(nbytes))
        transfers.copy_out(target.address, source.address, nbytes).wait()
        assert source.get(0, nbytes) == content_of(nbytes, seed=nbytes)


def test_nothing_to_move_has_landed(transfers: Transfers, extent_file: ExtentFile) -> None:
    lease = extent_file.lease(0, "empty")
    assert transfers.read(lease, 0, 0, 0, "empty").landed
    assert transfers.write(lease, 0, 0, 0, "empty").landed


@pytest.mark.parametrize("io", DIRECT)
def test_the_ledger_counts_what_moved_and_what_was_waited_for(
    extent_file: ExtentFile, ledger: Ledger, io: FileIO
) -> None:
    transfers = Transfers(extent_file, ledger, block_bytes=BLOCK_BYTES, io=io)
    memory = Memory(LARGEST)
    lease = extent_file.lease(5000, "w")
    transfers.write(lease, 0, memory.address, 5000, "w", capacity=8192).wait()
    transfers.read(lease, 0, memory.address + 1, 5000, "w").wait()
    transfers.copy_in(memory.address, memory.address + 8192, 100).wait()
    transfers.close()
    counted = ledger.snapshot()
    assert counted.moved_bytes == {
        Channel.NVME_WRITE: 8192,  # direct I/O moves whole pages
        Channel.NVME_READ: 8192,
        Channel.H2D: 100,
        Channel.D2H: 0,
    }
    assert counted.exposed_seconds[Channel.NVME_READ] > 0
    assert counted.exposed_seconds[Channel.D2H] == 0


@pytest.mark.parametrize("io", DIRECT)
def test_bounce_buffers_are_counted_while_they_exist(
    extent_file: ExtentFile, ledger: Ledger, io: FileIO
) -> None:
    transfers = Transfers(extent_file, ledger, workers=1, block_bytes=BLOCK_BYTES, io=io)
    memory = Memory(LARGEST)
    lease = extent_file.lease(5000, "w")
    transfers.read(lease, 0, memory.address, 5000, "w", capacity=8192).wait()
    assert ledger.snapshot().held_bytes[Tier.DEVICE] == 0
    transfers.read(lease, 0, memory.address + 1, 5000, "w").wait()
    assert ledger.snapshot().held_bytes[Tier.DEVICE] == BLOCK_BYTES
    assert transfers.buffer_bytes == 2 * BLOCK_BYTES
    transfers.close()
    assert ledger.snapshot().held_bytes[Tier.DEVICE] == 0


def test_buffered_transfers_need_no_buffers(extent_file: ExtentFile, ledger: Ledger) -> None:
    transfers = Transfers(extent_file, ledger, io=FileIO.BUFFERED)
    assert transfers.buffer_bytes == 0
    assert transfers.buffered_because == "it was asked for"


def test_without_a_file_only_memory_is_copied(ledger: Ledger, io: FileIO) -> None:
    transfers = Transfers(None, ledger, io=io)
    memory = Memory(PAGE_BYTES)
    memory.put(0, b"x")
    transfers.copy_in(memory.address, memory.address + 1, 1).wait()
    assert memory.get(1, 1) == b"x"
    assert transfers.buffer_bytes == 0
    transfers.close()


def our_threads() -> set[str]:
    """Return the threads that carry copies, Python's and native ones, by their task."""
    found: set[str] = set()
    python = {thread.native_id for thread in threading.enumerate() if thread.name[:5] == "zinf-"}
    for task in Path("/proc/self/task").iterdir():
        try:
            named = (task / "comm").read_text().startswith("zinf-io-")
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if named or int(task.name) in python:
            found.add(task.name)
    return found


def test_dropped_transfers_end_their_threads(
    extent_file: ExtentFile, ledger: Ledger, io: FileIO
) -> None:
    before = our_threads()
    transfers = Transfers(extent_file, ledger, io=io)
    assert our_threads() == before, "no thread before the first copy"
    memory = Memory(PAGE_BYTES)
    lease = extent_file.lease(PAGE_BYTES, "w")
    copies = [transfers.write(lease, 0, memory.address, PAGE_BYTES, "w") for _ in range(50)]
    started = our_threads() - before
    assert started
    del transfers
    gc.collect()
    for copy in copies:
        copy.wait()
    deadline = time.monotonic() + 20
    while our_threads() & started:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_close_is_idempotent_and_final(transfers: Transfers, extent_file: ExtentFile) -> None:
    transfers.close()
    transfers.close()
    with pytest.raises(ValueError, match="closed"):
        transfers.read(extent_file.lease(1, "w"), 0, Arena(1).address, 1, "w")
