"""Programs of copies and updates: order, faults, ends, and what is refused."""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.native.files import PAGE, SECONDS, Memory, engine, opened
from tests.native.test_io import kind_of
from zcompile.runtime.native import Native, NativeError
from zcompile.runtime.native_io import FilePair, IOCall, IOChannel, NativeIO
from zcompile.runtime.native_stream import (
    NativeStream,
    Program,
    RequestFailed,
    SpanRow,
    StepKind,
    UpdateCall,
)
from zcompile.runtime.optim_batch import Item, batch
from zcompile.runtime.optim_formulas import Sgd

NUM_PAGES = 32
NUMEL = PAGE // 4


@pytest.fixture
def file(tmp_path: Path) -> Generator[FilePair, None, None]:
    with opened(tmp_path / "file", NUM_PAGES * PAGE) as file:
        yield file


@pytest.fixture(params=["uring", "threads"])
def io(native: Native, request: pytest.FixtureRequest) -> Generator[NativeIO, None, None]:
    io = engine(native, kind_of(request.param, native))
    yield io
    io.close()


def span(memory: Memory, in_memory: int, in_file: int, count: int = 1) -> SpanRow:
    """Return ``count`` pages of memory and file, from these pages on."""
    nbytes = count * PAGE
    return in_file * PAGE, memory.address + in_memory * PAGE, nbytes, nbytes, nbytes, 0, 0, 0


def requests(program: Program, *made: tuple[IOChannel, Any]) -> None:
    """Give ``program`` requests of one span each."""
    for channel, each in made:
        program.requests.append((channel, 1, len(program.spans)))
        program.spans.append(each)


def finished(stream: NativeStream, program: Program) -> int:
    """Run ``stream`` to its end; return how often it returned on its way."""
    num_returns = 0
    while stream.progress.num_done < len(program.steps):
        num_returns += stream.run(SECONDS)
    return num_returns


def descent(memory: Memory, page: int, grad_page: int) -> UpdateCall:
    """Return a step of gradient descent, by 0.5 times the gradient."""

    def tensor(at: int) -> torch.Tensor:
        view = (ctypes.c_float * NUMEL).from_address(memory.address + at * PAGE)
        return torch.frombuffer(view, dtype=torch.float32)

    options = Sgd(0.5)
    item = Item(tensor(page), tensor(grad_page), step_size=options.step_size(1))
    return UpdateCall(options.formula(), batch([item]))


def floats(*values: float) -> bytes:
    return b"".join(np.full(NUMEL, value, np.float32).tobytes() for value in values)


def test_a_program_reads_updates_and_writes(native: Native, io: NativeIO, file: FilePair) -> None:
    memory, outside = Memory(4 * PAGE), Memory(PAGE)
    memory.put(0, floats(3, 2))
    store = Program()
    requests(store, (IOChannel.WRITE, span(memory, 0, 5, 2)))
    store.steps += [(StepKind.START, 0), (StepKind.AWAIT, 0)]
    with closing(NativeStream(native, io, None, store, [file])) as stream:
        assert finished(stream, store) == 0
    memory.put(0, bytes(2 * PAGE))
    program = Program()
    requests(
        program,
        (IOChannel.READ, span(memory, 2, 5, 2)),
        (IOChannel.WRITE, span(memory, 2, 9)),
        (IOChannel.READ, span(memory, 0, 9)),
        (IOChannel.COPY_OUT, (memory.address, outside.address, PAGE, PAGE, PAGE, 0, 0, 0)),
    )
    program.updates.append(descent(memory, 2, 3))
    program.vacancies.append((memory.address + 2 * PAGE, 2 * PAGE))
    program.steps += [
        (StepKind.START, 0),
        (StepKind.AWAIT, 0),
        (StepKind.UPDATE, 0),
        (StepKind.START, 1),
        (StepKind.RETURN, 0),
        (StepKind.AWAIT, 1),
        (StepKind.START, 2),
        (StepKind.VACATE, 0),
        (StepKind.AWAIT, 2),
        (StepKind.AWAIT, 2),
        (StepKind.START, 3),
        (StepKind.AWAIT, 3),
    ]
    with closing(NativeStream(native, io, None, program, [file])) as stream:
        assert finished(stream, program) == 1
        progress = stream.progress
    assert outside.get() == memory.get(0, PAGE) == floats(2)
    assert memory.get(2 * PAGE, 2 * PAGE) == bytes(2 * PAGE)
    assert progress.num_done == len(program.steps)
    assert progress.moved_bytes == {
        IOChannel.READ: 3 * PAGE,
        IOChannel.WRITE: PAGE,
        IOChannel.COPY_IN: 0,
        IOChannel.COPY_OUT: PAGE,
    }
    assert io.reap() == []


def test_a_program_goes_on_with_what_is_added(native: Native, io: NativeIO, file: FilePair) -> None:
    memory = Memory(2 * PAGE)
    memory.put(0, floats(3))
    program = Program()
    requests(program, (IOChannel.WRITE, span(memory, 0, 5)))
    program.steps += [(StepKind.START, 0)]
    with closing(NativeStream(native, io, None, program, [file])) as stream:
        assert finished(stream, program) == 0
        for at in range(1, 40):  # so many that results would move if they lay in one block
            requests(program, (IOChannel.WRITE, span(memory, 0, 5 + at)))
            program.steps += [(StepKind.START, at)]
        program.steps += [(StepKind.AWAIT, at) for at in range(40)]
        requests(program, (IOChannel.READ, span(memory, 1, 44)))
        program.steps += [(StepKind.START, 40), (StepKind.AWAIT, 40)]
        stream.extend(program)
        assert finished(stream, program) == 0
        assert stream.progress.moved_bytes[IOChannel.WRITE] == 40 * PAGE
        with pytest.raises(NativeError):
            stream.extend(Program())
    assert memory.get(PAGE, PAGE) == floats(3)
    with pytest.raises(ValueError, match="closed"):
        stream.extend(program)


@pytest.mark.parametrize("channel", [IOChannel.READ, IOChannel.WRITE])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_the_first_error_is_told_with_its_place(
    native: Native, io: NativeIO, file: FilePair, channel: IOChannel, code: int
) -> None:
    def fail(after: bool, call: IOCall) -> None:
        if not after and call.offset == 7 * PAGE:
            call.result = -code

    io.inject(fail)
    memory = Memory(3 * PAGE)
    program = Program()
    requests(program, *((channel, span(memory, at, 6 + at)) for at in range(3)))
    program.steps += [(StepKind.START, at) for at in range(3)]
    program.steps += [(StepKind.AWAIT, at) for at in range(3)]
    stream = NativeStream(native, io, None, program, [file])
    with pytest.raises(RequestFailed) as caught:
        finished(stream, program)
    result = caught.value.result
    assert (caught.value.request, result.error) == (1, code)
    assert (result.offset, result.nbytes) == (7 * PAGE, PAGE)
    assert stream.progress.num_done == 4
    stream.close()
    assert io.status().num_active == 0


def test_short_and_interrupted_calls_are_continued(
    native: Native, io: NativeIO, file: FilePair
) -> None:
    seen: list[int] = []

    def misbehave(after: bool, call: IOCall) -> None:
        if not after:
            seen.append(call.serial)
            if len(seen) % 3 == 1:
                call.result = -errno.EINTR
            elif call.nbytes > PAGE:
                call.nbytes = PAGE

    memory = Memory(8 * PAGE)
    content = bytes(range(256)) * (8 * PAGE // 256)
    memory.put(0, content)
    io.inject(misbehave)
    program = Program()
    requests(
        program,
        (IOChannel.WRITE, span(memory, 0, 3, 8)),
        (IOChannel.READ, span(memory, 0, 3, 8)),
    )
    program.steps += [(StepKind.START, 0), (StepKind.AWAIT, 0), (StepKind.RETURN, 0)]
    program.steps += [(StepKind.START, 1), (StepKind.AWAIT, 1)]
    with closing(NativeStream(native, io, None, program, [file])) as stream:
        assert stream.run(SECONDS)
        memory.put(0, bytes(8 * PAGE))
        assert not stream.run(SECONDS)
    assert memory.get() == content
    assert len(seen) > 16


def test_closing_waits_for_what_is_under_way(native: Native, file: FilePair) -> None:
    io = engine(native, kind_of("threads", native), depth=1, block_bytes=PAGE, buffer_bytes=PAGE)
    reached, opened_ = threading.Event(), threading.Event()
    offsets: list[int] = []

    def gate(after: bool, call: IOCall) -> None:
        if not after:
            offsets.append(call.offset)
            reached.set()
            assert opened_.wait(SECONDS)

    io.inject(gate)
    memory = Memory(8 * PAGE)
    program = Program()
    requests(program, (IOChannel.READ, span(memory, 0, 0, 8)))
    program.steps += [(StepKind.START, 0), (StepKind.AWAIT, 0)]
    stream = NativeStream(native, io, None, program, [file])
    assert not stream.run(0.001)  # a slice of time, and nothing is over
    assert reached.wait(SECONDS)
    closer = threading.Thread(target=stream.close)
    closer.start()
    io.cancel(1)  # as the closer does, sooner or later: no block follows the one at the gate
    assert closer.is_alive()
    opened_.set()
    closer.join(SECONDS)
    assert not closer.is_alive()
    assert offsets == [0]
    assert io.status().num_active == 0
    with pytest.raises(ValueError, match="closed"):
        stream.run(SECONDS)
    stream.close()
    io.close()


def test_a_retired_engine_takes_no_more(native: Native, io: NativeIO, file: FilePair) -> None:
    memory = Memory(PAGE)
    program = Program()
    requests(program, (IOChannel.READ, span(memory, 0, 0)))
    program.steps += [(StepKind.START, 0), (StepKind.AWAIT, 0)]
    io.retire()
    stream = NativeStream(native, io, None, program, [file])
    with closing(stream), pytest.raises(NativeError) as caught:
        stream.run(SECONDS)
    assert caught.value.errno == errno.ESHUTDOWN


@pytest.mark.parametrize(
    "steps",
    [
        [(StepKind.AWAIT, 0)],
        [(StepKind.START, 0), (StepKind.START, 0)],
        [(StepKind.START, 1)],
        [(StepKind.UPDATE, 0)],
        [(StepKind.VACATE, 0)],
        [(7, 0)],
    ],
)
def test_what_makes_no_sense_is_refused(
    native: Native, io: NativeIO, file: FilePair, steps: list[tuple[StepKind, int]]
) -> None:
    program = Program()
    requests(program, (IOChannel.READ, span(Memory(PAGE), 0, 0)))
    program.steps += steps
    with pytest.raises(NativeError) as caught:
        NativeStream(native, io, None, program, [file])
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("request_", [(IOChannel.READ, 2, 0), (9, 1, 0), (IOChannel.READ, 1, 1)])
def test_requests_that_make_no_sense_are_refused(
    native: Native, io: NativeIO, file: FilePair, request_: tuple[IOChannel, int, int]
) -> None:
    program = Program(requests=[request_], spans=[span(Memory(PAGE), 0, 0)])
    with pytest.raises(NativeError) as caught:
        NativeStream(native, io, None, program, [file])
    assert caught.value.errno == errno.EINVAL
