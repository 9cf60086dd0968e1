"""Updates that run natively from one end to the other: bits, faults, interruptions, layout."""

from __future__ import annotations

import _thread
import errno
import signal
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adam, AdamW

from tests.optim.small_session import (
    Placement,
    SmallSession,
    all_on,
    gradients,
    mixed,
    parameters,
    session,
)
from tests.optim.test_failures import differing, picture, states_away
from tests.optim.twins import Make, Twins
from tests.runtime.conftest import USABLE
from zcompile.ir import PAGE_BYTES, Channel, Schedule, Tier
from zcompile.runtime.arena import Arena
from zcompile.runtime.binding import Binding
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.errors import StorageError
from zcompile.runtime.executor import Kernels, NativeUpdates
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.machine import Machine
from zcompile.runtime.native_carrier import NativeCarrier
from zcompile.runtime.native_io import IOCall, IOChannel, NativeIO

NATIVE = [io for io in USABLE if io is not FileIO.PYTHON]
SECONDS = 60.0

OPTIMIZERS: tuple[Make, ...] = (
    partial(AdamW, lr=1e-2),
    partial(AdamW, lr=1e-2, fused=True, amsgrad=True),
    partial(Adam, lr=1e-2, weight_decay=0.1, maximize=True),
    partial(SGD, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    partial(SGD, lr=0.1),
)


class Watched(CpuExecutor):
    """Notes of each update whether it was streamed."""

    def __init__(
        self,
        schedule: Schedule,
        bindings: Mapping[str, Binding],
        arena: Arena,
        machine: Machine,
        *,
        streamed: list[bool],
    ) -> None:
        super().__init__(schedule, bindings, arena, machine)
        self._streamed = streamed

    def stream(self, kernels: Kernels, native: NativeUpdates) -> bool:
        done = super().stream(kernels, native)
        self._streamed.append(done)
        return done


def random_parameters(random: Random, dtype: torch.dtype) -> dict[str, Parameter]:
    """Return parameters of any size from one element to some hundreds of pages."""
    sizes = [random.choice((1, 7, 1000, 1024, 1025, 40_001, 300_000)) for _ in range(6)]
    sizes = [random.randint(max(1, size // 2), size) for size in sizes]
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    return {
        f"p{at}": Parameter(torch.randn(size, generator=generator).to(dtype))
        for at, size in enumerate(sizes)
    }


@pytest.mark.parametrize("seed", range(10))
def test_every_bit_is_plain_over_sizes_types_windows_and_ways(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    dtype = random.choice((torch.float32, torch.float32, torch.bfloat16, torch.float64))
    made = random_parameters(random, dtype)
    plain = {name: Parameter(each.detach().clone()) for name, each in made.items()}
    window = random.choice((64 << 10, 100_000, 1 << 20, None))
    placement = random.choice((all_on(Tier.NVME), mixed, all_on(Tier.HOST)))
    streamed: list[bool] = []
    executor = partial(Watched, streamed=streamed)
    io = random.choice(NATIVE)
    with session(
        tmp_path, made, placement, window_bytes=window, io=io, make_executor=executor
    ) as own:
        twins = Twins.of(own, plain, random.choice(OPTIMIZERS))
        for iteration in range(4):
            twins.step(iteration)
    # The first update makes states, which is not the library's.
    assert all(streamed[len(streamed) // 4 :]), streamed


@pytest.mark.parametrize("io", [io for io in NATIVE if io is not FileIO.BUFFERED])
def test_each_way_to_read_and_write_moves_the_same(tmp_path: Path, io: FileIO) -> None:
    moved: list[Mapping[Channel, int]] = []
    for way in (io, FileIO.PYTHON):
        with session(tmp_path / way, parameters(), mixed, io=way) as own:
            twins = Twins.of(own, parameters(), OPTIMIZERS[0])
            twins.step(0)
            before = own.machine.ledger.snapshot()
            twins.step(1)
            moved.append(own.machine.ledger.snapshot().since(before).moved_bytes)
    assert moved[0] == moved[1]


def engine_of(own: SmallSession) -> NativeIO:
    carrier = own.machine.transfers.carrier
    assert isinstance(carrier, NativeCarrier)
    return carrier.io


@contextmanager
def second_step(
    folder: Path, io: FileIO, placement: Placement, make: Make = OPTIMIZERS[0]
) -> Generator[tuple[SmallSession, Twins], None, None]:
    """Return a session after one step, with the gradients of the next."""
    with session(folder, parameters(), placement, io=io) as own:
        twins = Twins.of(own, parameters(), make)
        twins.step(0)
        own.give_gradients(gradients(own.parameters.values(), 1))
        yield own, twins


class Failing:
    """Replaces a call of the engine by an error, after ``left`` others of its direction."""

    def __init__(self, channel: IOChannel, code: int, left: int) -> None:
        self._channel = channel
        self._code = code
        self._left = left
        self._lock = threading.Lock()

    def __call__(self, after: bool, call: IOCall) -> None:
        if after or call.channel != self._channel:
            return
        with self._lock:
            self._left -= 1
            if self._left < 0:
                call.result = -self._code


@pytest.mark.parametrize("io", NATIVE)
@pytest.mark.parametrize("left", [0, 3])
@pytest.mark.parametrize(
    ("channel", "code"),
    [(IOChannel.READ, errno.EIO), (IOChannel.WRITE, errno.EIO), (IOChannel.WRITE, errno.ENOSPC)],
)
def test_after_an_error_nothing_has_changed_and_the_step_can_be_repeated(
    tmp_path: Path, io: FileIO, channel: IOChannel, code: int, left: int
) -> None:
    with second_step(tmp_path, io, all_on(Tier.NVME)) as (own, twins):
        before = picture(own, twins.ours)
        engine_of(own).inject(Failing(channel, code, left))
        with pytest.raises(StorageError, match=errno.errorcode[code]) as caught:
            twins.ours.step()
        engine_of(own).inject(None)
        assert any(caught.value.label.startswith(name) for name in own.parameters)
        assert engine_of(own).status().num_active == 0
        assert not hasattr(caught.value, "__notes__")
        assert differing(before, picture(own, twins.ours)) == set()
        twins.step(1)


@pytest.mark.parametrize("io", NATIVE)
def test_short_and_interrupted_calls_change_nothing(tmp_path: Path, io: FileIO) -> None:
    serials: list[int] = []

    def misbehave(after: bool, call: IOCall) -> None:
        if not after:
            serials.append(call.serial)
            if len(serials) % 3 == 0:
                call.result = -errno.EINTR
            elif call.nbytes > PAGE_BYTES:
                call.nbytes = PAGE_BYTES

    with second_step(tmp_path, io, all_on(Tier.NVME)) as (own, twins):
        engine_of(own).inject(misbehave)
        twins.step(1)
        engine_of(own).inject(None)
    assert len(serials) > 20


@contextmanager
def interrupting(own: SmallSession, at: int = 1) -> Generator[None]:
    """Interrupt the main thread when its ``at``-th write is about to begin."""
    noticed, writes = threading.Event(), list[int]()

    def interrupted(*_: object) -> None:
        noticed.set()
        raise KeyboardInterrupt

    def interrupt(after: bool, call: IOCall) -> None:
        if not after and call.channel == IOChannel.WRITE:
            writes.append(call.serial)
            if len(writes) == at:
                _thread.interrupt_main()
                assert noticed.wait(SECONDS)

    handler = signal.signal(signal.SIGINT, interrupted)
    engine_of(own).inject(interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    engine_of(own).inject(None)
    assert engine_of(own).status().num_active == 0


@pytest.mark.parametrize("io", NATIVE)
def test_an_interrupt_ends_the_step_and_changes_nothing(tmp_path: Path, io: FileIO) -> None:
    with second_step(tmp_path, io, all_on(Tier.NVME)) as (own, twins):
        before = picture(own, twins.ours)
        with interrupting(own), pytest.raises(KeyboardInterrupt):
            twins.ours.step()
        assert differing(before, picture(own, twins.ours)) == set()
        twins.step(1)


def test_an_interrupt_names_what_it_has_changed_of_mixtures(tmp_path: Path) -> None:
    with second_step(tmp_path, NATIVE[0], states_away) as (own, twins):
        before = picture(own, twins.ours)
        with interrupting(own, 3), pytest.raises(KeyboardInterrupt) as caught:
            twins.ours.step()
        changed = differing(before, picture(own, twins.ours))
        assert changed == {"long", "long:exp_avg_sq"}
        (note,) = caught.value.__notes__
        assert note.endswith("are long, long:exp_avg_sq")


def test_of_a_mixture_only_what_is_named_has_changed(tmp_path: Path) -> None:
    with second_step(tmp_path, NATIVE[0], states_away) as (own, twins):
        before = picture(own, twins.ours)
        engine_of(own).inject(Failing(IOChannel.WRITE, errno.EIO, 3))
        with pytest.raises(StorageError) as caught:
            twins.ours.step()
        engine_of(own).inject(None)
        changed = differing(before, picture(own, twins.ours))
        assert changed == {"long", "long:exp_avg_sq"}
        (note,) = caught.value.__notes__
        assert note.endswith("are long, long:exp_avg_sq")


def offsets(own: SmallSession, tensors: Mapping[str, Tensor]) -> list[int]:
    """Return where ``tensors`` rest in the file."""
    leases = [
        place.home.lease for each in tensors.values() if (place := own.machine.homes.find(each))
    ]
    return [lease.offset for lease in leases if lease is not None]


def test_a_parameter_and_its_states_lie_side_by_side(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), all_on(Tier.NVME)) as own:
        twins = Twins.of(own, parameters(), OPTIMIZERS[0])
        for iteration in range(3):
            twins.step(iteration)
        for name, param in own.parameters.items():
            state = twins.ours.state[param]
            parts = {name: param, "m": state["exp_avg"], "v": state["exp_avg_sq"]}
            first, second, third = offsets(own, parts)
            room = -(-param.nbytes // PAGE_BYTES) * PAGE_BYTES
            assert (second, third) == (first + room, first + 2 * room), name


def test_an_update_from_which_the_engine_was_taken_says_so(tmp_path: Path) -> None:
    with second_step(tmp_path, NATIVE[0], all_on(Tier.NVME)) as (own, twins):
        own.machine.transfers.close()
        with pytest.raises(ValueError, match="the transfers are closed"):
            twins.ours.step()
