"""Copies by threads of Python: needs no native library, and takes calls that tests make fail."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain

from zcompile.runtime.blocks import Block, Span, cut, split
from zcompile.runtime.copy_queue import Carry, CopyQueue
from zcompile.runtime.disk import Disk
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.pending import Completion, Pending
from zcompile.runtime.syscalls import Syscalls

COPY_BYTES = 4 << 20
"""Memory is copied in blocks of this size, so that an urgent copy soon gets its turn."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """One block of a copy from memory to memory."""

    source: int
    destination: int
    nbytes: int


class PythonCarrier:
    """Implements ``Carrier`` with ``workers`` threads for each direction of the file.

    The file is read and written in blocks of ``block_bytes``: several threads share a large
    tensor.  Each thread has a bounce buffer of that size.
    """

    def __init__(
        self,
        file: ExtentFile | None,
        ledger: Ledger,
        calls: Syscalls,
        *,
        workers: int,
        block_bytes: int,
        buffered: bool,
    ) -> None:
        self._file = file
        self._ledger = ledger
        self._workers = workers
        self._block_bytes = block_bytes
        self._disk = Disk(file, ledger, calls, buffered=buffered) if file else None
        self._copies = {
            channel: CopyQueue(channel, partial(_copier, calls, ledger, channel), 1)
            for channel in (Channel.H2D, Channel.D2H)
        }
        self._moves: dict[Channel, CopyQueue[Block]] = {}
        if self._disk:
            reader = partial(self._disk.reader, block_bytes)
            writer = partial(self._disk.writer, block_bytes)
            self._moves = {
                Channel.NVME_READ: CopyQueue(Channel.NVME_READ, reader, workers),
                Channel.NVME_WRITE: CopyQueue(Channel.NVME_WRITE, writer, workers),
            }

    @property
    def buffer_bytes(self) -> int:
        if self._disk is None or self._disk.needs_no_buffers:
            return 0
        return 2 * self._workers * self._block_bytes

    @property
    def buffered_because(self) -> str | None:
        return self._disk.buffered_because if self._disk else "there is no file"

    def move(self, channel: Channel, span: Span, keep: object, *, urgent: bool) -> Pending:
        assert self._file is not None, "there is no file"
        completion = Completion(channel, self._ledger, keep)
        placed = self._file.placed(span)
        blocks = chain.from_iterable(split(each, self._block_bytes) for each in placed)
        self._moves[channel].submit(blocks, completion, urgent=urgent)
        return completion

    def copy(
        self, channel: Channel, source: int, destination: int, nbytes: int, keep: object
    ) -> Pending:
        completion = Completion(channel, self._ledger, keep)
        self._copies[channel].submit(_pieces(source, destination, nbytes), completion)
        return completion

    def retire(self) -> None:
        for copies in self._copies.values():
            copies.retire()
        for moves in self._moves.values():
            moves.retire()

    def close(self) -> None:
        for copies in self._copies.values():
            copies.close()
        for moves in self._moves.values():
            moves.close()


def _pieces(source: int, destination: int, nbytes: int) -> Iterator[_Piece]:
    for start, length in cut(nbytes, COPY_BYTES):
        yield _Piece(source + start, destination + start, length)


@contextmanager
def _copier(
    calls: Syscalls, ledger: Ledger, channel: Channel
) -> Generator[Carry[_Piece], None, None]:
    """Give one thread what it copies memory with."""

    def copy(piece: _Piece) -> None:
        calls.copy(piece.destination, piece.source, piece.nbytes)
        ledger.moved(channel, piece.nbytes)

    yield copy
