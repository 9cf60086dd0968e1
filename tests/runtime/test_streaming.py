"""Schedules of updates as programs for the native library: the same bytes, the same account."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import count, islice

import pytest
import torch
from torch import Tensor

from tests.runtime.conftest import USABLE
from tests.runtime.programs import Program, update_program
from tests.runtime.tensors import at_rest
from zcompile.ir import (
    PAGE_BYTES,
    Channel,
    Compute,
    Fetch,
    Offload,
    Schedule,
    Tier,
    parse,
)
from zcompile.runtime.binding import Binding
from zcompile.runtime.blocks import Span
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.executor import execute
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.machine import Machine
from zcompile.runtime.native_io import IOChannel
from zcompile.runtime.native_stream import StepKind, UpdateCall
from zcompile.runtime.pool import Pool
from zcompile.runtime.spot import Move
from zcompile.runtime.streaming import Translator, can_translate, join
from zcompile.runtime.transfers import Transfers

STRIPED = True


def in_place(span: Span) -> tuple[Span, ...]:
    """Return where a span lies if there is one file."""
    return (span,)


NATIVE = [io for io in USABLE if io is not FileIO.PYTHON]


class InPython:
    """Updates of which every kernel runs in Python, between two steps of the program."""

    pool: Pool | None = None

    @property
    def ahead(self) -> bool:
        return False

    def calls(self, bucket: str, tensors: Mapping[str, Tensor]) -> Sequence[UpdateCall] | None:
        del bucket, tensors
        return None

    def ran(self, bucket: str) -> None:
        raise AssertionError(f"{bucket} did not run natively")


@pytest.fixture(params=NATIVE)
def machine(
    homes: Homes, extent_file: ExtentFile, ledger: Ledger, request: pytest.FixtureRequest
) -> Generator[Machine, None, None]:
    machine = Machine(homes, Transfers(extent_file, ledger, io=request.param), ledger)
    yield machine
    machine.close()


def all_away() -> list[Program]:
    """Return updates of which everything travels."""
    programs = (update_program(seed) for seed in count())
    away = (
        each
        for each in programs
        if all(value.home is not Tier.DEVICE for value in each.planned.values)
    )
    return list(islice(away, 12))


def run(
    program: Program, machine: Machine, *, stream: bool
) -> tuple[dict[str, Tensor], Mapping[Channel, int]]:
    """Return what rests at home after the update, and the bytes that it moved."""
    schedule, kernels = program.planned, program.kernels()
    contents = program.contents()
    sources = {
        value.name: at_rest(machine, value.home, contents[value.name]) for value in schedule.values
    }
    bindings = {name: Binding.to(source) for name, source in sources.items()}
    before = machine.ledger.snapshot()
    with machine.executing(schedule, bindings) as executor:
        executor.prepare()
        if stream:
            assert executor.stream(kernels, InPython())
        else:
            execute(schedule, executor, kernels, {})
        executor.commit()
    moved = machine.ledger.snapshot().since(before).moved_bytes
    return {name: source.clone() for name, source in sources.items()}, moved


@pytest.mark.parametrize("program", all_away(), ids=lambda each: each.planned.name)
def test_a_stream_leaves_what_the_steps_leave(machine: Machine, program: Program) -> None:
    stepped, moved_by_steps = run(program, machine, stream=False)
    streamed, moved_by_stream = run(program, machine, stream=True)
    for name, tensor in stepped.items():
        assert torch.equal(streamed[name], tensor), name
    if machine.transfers.choice.io is FileIO.BUFFERED:  # the pages between neighbours go along
        padding = PAGE_BYTES * len(program.planned.values)
        for channel, nbytes in moved_by_steps.items():
            assert nbytes <= moved_by_stream[channel] <= nbytes + padding
    else:
        assert moved_by_stream == moved_by_steps


def test_python_carries_nothing_out_natively(
    homes: Homes, extent_file: ExtentFile, ledger: Ledger
) -> None:
    program = all_away()[0]
    machine = Machine(homes, Transfers(extent_file, ledger, io=FileIO.PYTHON), ledger)
    with machine.lease_arena(program.planned.arena_bytes) as arena:
        bindings = {name: Binding.to(each) for name, each in program.contents().items()}
        executor = CpuExecutor(program.planned, bindings, arena, machine)
        assert not executor.stream({}, InPython())
    machine.close()


class Rows:
    """Values of one page each that lie side by side, in the file and in the arena."""

    def __init__(self, schedule: Schedule) -> None:
        self.at = {value.name: at for at, value in enumerate(schedule.values)}

    def span(self, value: str) -> Span:
        start = self.at[value] * PAGE_BYTES
        return Span(start, 1 << 20 | start, PAGE_BYTES, PAGE_BYTES, PAGE_BYTES, value)

    def fetched(self, step: Fetch) -> tuple[Move, Tensor]:
        return Move(Channel.NVME_READ, self.span(step.value), step.value), torch.zeros(1)

    def offloaded(self, step: Offload, tensor: Tensor) -> Move:
        del tensor
        return Move(Channel.NVME_WRITE, self.span(step.value), step.value)

    def vacated(self, value: str) -> tuple[int, int] | None:
        return (self.at[value], PAGE_BYTES) if value == "g" else None


SIDE_BY_SIDE = parse("""
schedule update
value %p : 4096 B parameter @ nvme
value %m : 4096 B state @ nvme
value %g : 4096 B gradient @ nvme
value %q : 4096 B parameter @ nvme
fetch %p <- nvme as t0 at 0
fetch %m <- nvme as t1 at 4096
fetch %g <- nvme as t2 at 8192
fetch %q <- nvme as t3 at 12288
wait %p for t0
wait %m for t1
wait %g for t2
update one(%p, %m, %g) -> (%p, %m) transient 0 B
offload %p -> nvme as t4
offload %m -> nvme as t5
release %g
wait %q for t3
update two(%q) -> (%q) transient 0 B
offload %q -> nvme as t6
release %p after t4
release %m after t5
release %q after t6
arena 16384 B
""")


def test_what_a_kernel_needs_is_one_request_and_what_lies_side_by_side_one_span() -> None:
    translator = Translator(SIDE_BY_SIDE, Rows(SIDE_BY_SIDE), InPython().calls, in_place)
    assert translator.begin().program.steps == [(StepKind.START, 0), (StepKind.START, 1)]
    made = translator.finish()
    program = made.program
    assert program.requests == [
        (IOChannel.READ, 1, 0),
        (IOChannel.READ, 1, 1),
        (IOChannel.WRITE, 1, 2),
        (IOChannel.WRITE, 1, 3),
    ]
    assert [offset // PAGE_BYTES for offset, *_ in program.spans] == [0, 3, 0, 3]
    assert [nbytes // PAGE_BYTES for _, _, nbytes, *_ in program.spans] == [3, 1, 2, 1]
    assert program.steps == [
        (StepKind.START, 0),
        (StepKind.START, 1),
        (StepKind.AWAIT, 0),
        (StepKind.RETURN, 0),
        (StepKind.START, 2),
        (StepKind.VACATE, 0),
        (StepKind.AWAIT, 1),
        (StepKind.RETURN, 0),
        (StepKind.START, 3),
        (StepKind.AWAIT, 2),
        (StepKind.AWAIT, 3),
    ]
    assert [name for name, _ in made.returns] == ["one", "two"]
    assert made.kept == ["p", "m", "g", "q", "p", "m", "q"]
    assert made.label(0, 0, 2 * PAGE_BYTES + 1, in_place) == "g"


def test_other_kernels_are_left_to_the_steps() -> None:
    zeros = Compute("zeros", (), (), 0)
    schedule = SIDE_BY_SIDE.with_steps((zeros, *SIDE_BY_SIDE.steps))
    assert can_translate(SIDE_BY_SIDE)
    assert not can_translate(schedule)


def span(offset: int, address: int, nbytes: int, room: int | None = None) -> Span:
    return Span(offset, address, nbytes, room or nbytes, room or nbytes, "w")


@pytest.mark.parametrize(
    ("spans", "joined"),
    [
        # Neighbours on both sides, the first with room up to the second.
        ([span(0, 8192, 4000, 4096), span(4096, 12288, 10)], [(0, 4106)]),
        ([span(4096, 12288, 10), span(0, 8192, 4000, 4096)], [(0, 4106)]),
        # No room for the rest of the page.
        ([span(0, 8192, 4000), span(4096, 12288, 10)], [(0, 4000), (4096, 10)]),
        # Neighbours in the file alone, in memory alone, and with a page between them.
        ([span(0, 8192, 4096), span(4096, 16384, 10)], [(0, 4096), (4096, 10)]),
        ([span(0, 8192, 4096), span(8192, 12288, 10)], [(0, 4096), (8192, 10)]),
        ([span(0, 8192, 4096, 8192), span(8192, 16384, 10)], [(0, 4096), (8192, 10)]),
    ],
)
def test_only_neighbours_on_both_sides_are_joined(
    spans: list[Span], joined: list[tuple[int, int]]
) -> None:
    assert [(each.offset, each.nbytes) for each in join(spans)] == joined
