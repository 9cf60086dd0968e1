"""The executor for a CPU beyond the steps: storage that fails, accounts, memory in flight."""

from __future__ import annotations

import errno
import gc
import os
import threading
import weakref
from collections.abc import Generator

import pytest
import torch
from torch import Tensor

from tests.runtime.faulty_calls import FaultyCalls, raising
from zcompile.ir import PAGE_BYTES, Schedule, Tier, page_aligned, parse
from zcompile.runtime.arena import Arena
from zcompile.runtime.binding import Binding, Layout
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.errors import StorageError
from zcompile.runtime.executor import execute
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.machine import Machine
from zcompile.runtime.transfers import Transfers

COUNT = 3000
LAYOUT = Layout(torch.float32, (COUNT,), (1,))
SECONDS = 20.0

UPDATE = parse("""
schedule update.0
value %p : 12000 B parameter @ nvme
value %m : 12000 B state @ nvme
fetch %p <- nvme as t0 at 0
fetch %m <- nvme as t1 at 12288
wait %p for t0
wait %m for t1
update momentum(%p, %m) -> (%p, %m) transient 0 B
offload %p -> nvme as t2
offload %m -> nvme as t3
release %p after t2
release %m after t3
arena 24576 B
""")

EMPTY = Schedule("empty", (), ())


def momentum(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    m = tensors["m"].mul_(2).add_(tensors["p"])
    return {"p": tensors["p"].sub_(m), "m": m}


@pytest.fixture
def calls() -> FaultyCalls:
    return FaultyCalls()


@pytest.fixture
def machine(
    extent_file: ExtentFile, homes: Homes, ledger: Ledger, calls: FaultyCalls
) -> Generator[Machine, None, None]:
    machine = Machine(homes, Transfers(extent_file, ledger, calls=calls), ledger)
    yield machine
    machine.close()


@pytest.fixture
def arena(machine: Machine) -> Generator[Arena, None, None]:
    with machine.lease_arena(1 << 16) as arena:
        yield arena


def at_home(machine: Machine, label: str, tier: Tier = Tier.NVME) -> Tensor:
    home = machine.homes.fresh(label, tier, LAYOUT.dtype, LAYOUT.shape, LAYOUT.stride)
    return home.copy_(torch.arange(COUNT))


def update(machine: Machine, arena: Arena, bindings: dict[str, Binding]) -> None:
    """Do what whoever carries out an update does."""
    executor = CpuExecutor(UPDATE, bindings, arena, machine)
    try:
        executor.prepare()
        execute(UPDATE, executor, {"momentum": lambda tensors: momentum(dict(tensors))}, {})
        executor.commit()
    finally:
        executor.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE])
@pytest.mark.parametrize("at_call", range(1, 5))  # two reads and two writes
def test_an_update_happens_whole_or_not_at_all(
    machine: Machine, arena: Arena, calls: FaultyCalls, at_call: int, code: int
) -> None:
    p, m = at_home(machine, "layers.0.weight"), at_home(machine, "layers.0.weight.m")
    before = torch.arange(COUNT, dtype=torch.float32)
    bindings = {"p": Binding.to(p), "m": Binding.to(m)}
    with calls.suffering(raising(code, at_call)), pytest.raises(StorageError) as raised:
        update(machine, arena, bindings)
    assert raised.value.label in ("p", "m"), "the error names the tensor"
    assert torch.equal(p, before)
    assert torch.equal(m, before)
    update(machine, arena, bindings)
    assert torch.equal(p, before - 3 * before)
    assert torch.equal(m, 3 * before)


def test_a_full_disk_stops_an_update_before_it_begins(
    machine: Machine, arena: Arena, extent_file: ExtentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, m = at_home(machine, "p"), at_home(machine, "m")
    free_bytes = extent_file.size_bytes - PAGE_BYTES - extent_file.leased_bytes
    one_shadow_left = extent_file.lease(free_bytes - page_aligned(LAYOUT.nbytes), "filler")
    monkeypatch.setattr("os.posix_fallocate", no_space)
    before = machine.ledger.snapshot()
    with pytest.raises(StorageError, match=r"cannot allocate m: .*ENOSPC"):
        update(machine, arena, {"p": Binding.to(p), "m": Binding.to(m)})
    assert not any(machine.ledger.snapshot().since(before).moved_bytes.values())
    one_shadow_left.release()
    update(machine, arena, {"p": Binding.to(p), "m": Binding.to(m)})
    assert p[1] == -2


def no_space(fd: int, offset: int, nbytes: int) -> None:
    del fd, offset, nbytes
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_updates_reuse_the_extents_that_they_replace(
    machine: Machine, arena: Arena, extent_file: ExtentFile
) -> None:
    bindings = {name: Binding.to(at_home(machine, name)) for name in "pm"}
    update(machine, arena, bindings)
    leased_bytes = extent_file.leased_bytes
    for _ in range(3):
        update(machine, arena, bindings)
    assert extent_file.leased_bytes == leased_bytes == 2 * page_aligned(LAYOUT.nbytes)


def test_what_failed_cannot_be_committed(
    machine: Machine, arena: Arena, calls: FaultyCalls
) -> None:
    bindings = {name: Binding.to(at_home(machine, name)) for name in "pm"}
    executor = CpuExecutor(UPDATE, bindings, arena, machine)
    with pytest.raises(AssertionError, match="prepared"):
        executor.offload(9, "p", Tier.NVME, torch.zeros(COUNT))
    executor.prepare()
    with pytest.raises(AssertionError, match="no new bytes"):
        executor.commit()
    with calls.suffering(raising(errno.EIO)):
        executor.offload(2, "p", Tier.NVME, torch.zeros(COUNT))
        with pytest.raises(StorageError):
            executor.release("p", 2)
    executor.offload(3, "m", Tier.NVME, torch.zeros(COUNT))
    executor.release("m", 3)
    with pytest.raises(AssertionError, match="failed"):
        executor.commit()
    executor.close()


def test_an_error_reaches_whoever_waits_and_then_close_is_quiet(
    machine: Machine, arena: Arena, calls: FaultyCalls
) -> None:
    w, v = at_home(machine, "w"), at_home(machine, "v")
    executor = CpuExecutor(EMPTY, {"w": Binding.to(w), "v": Binding.to(v)}, arena, machine)
    with calls.suffering(raising(errno.EIO)):
        executor.fetch(0, "w", Tier.NVME, 0)
        executor.fetch(1, "v", Tier.NVME, 16384)
        with pytest.raises(StorageError, match="cannot read w"):
            executor.wait(0, "w")
        executor.close()


def test_close_raises_an_error_that_nobody_has_seen(
    machine: Machine, arena: Arena, calls: FaultyCalls
) -> None:
    executor = CpuExecutor(EMPTY, {"g": Binding(LAYOUT)}, arena, machine)
    with calls.suffering(raising(errno.ENOSPC)):
        executor.offload(0, "g", Tier.NVME, torch.zeros(COUNT))
        with pytest.raises(StorageError, match="cannot write g"):
            executor.close()
    executor.close()


def test_no_memory_goes_while_a_copy_touches_it(
    machine: Machine, arena: Arena, calls: FaultyCalls
) -> None:
    gate = threading.Event()

    def held(_call: int, nbytes: int) -> int:
        assert gate.wait(SECONDS)
        return nbytes

    gradient = torch.ones(COUNT)
    alive = weakref.ref(gradient)
    executor = CpuExecutor(EMPTY, {"g": Binding(LAYOUT)}, arena, machine)
    with calls.suffering(held):
        executor.offload(0, "g", Tier.NVME, gradient)  # whose home is dropped at once
        del gradient
        closing = threading.Thread(target=executor.close)
        closing.start()
        del executor
        gc.collect()
        closing.join(0.05)
        assert closing.is_alive()
        assert alive() is not None
        gate.set()
        closing.join(SECONDS)
    assert not closing.is_alive()
    del closing
    assert alive() is None


@pytest.mark.parametrize(
    ("tier", "channel", "nbytes"),
    [
        (Tier.DEVICE, Channel.H2D, LAYOUT.nbytes),
        (Tier.HOST, Channel.H2D, LAYOUT.nbytes),
        (Tier.NVME, Channel.NVME_READ, page_aligned(LAYOUT.nbytes)),
    ],
)
def test_fetches_take_the_channel_of_their_tier(
    machine: Machine, arena: Arena, tier: Tier, channel: Channel, nbytes: int
) -> None:
    executor = CpuExecutor(EMPTY, {"w": Binding.to(at_home(machine, "w", tier))}, arena, machine)
    before = machine.ledger.snapshot()
    executor.fetch(0, "w", tier, 0)
    executor.wait(0, "w")
    moved = machine.ledger.snapshot().since(before).moved_bytes
    assert {each: count for each, count in moved.items() if count} == {channel: nbytes}
    executor.close()


def test_a_copy_made_for_its_strides_is_counted_until_the_release(
    machine: Machine, arena: Arena
) -> None:
    layout = Layout(torch.float32, (30, 40), (1, 30))
    executor = CpuExecutor(EMPTY, {"g": Binding(layout), "h": Binding(layout)}, arena, machine)

    def held_bytes() -> int:
        return machine.ledger.snapshot().held_bytes[Tier.DEVICE] - before

    before = 0
    before = held_bytes()
    executor.offload(0, "g", Tier.HOST, torch.ones(30, 40))
    assert held_bytes() == layout.nbytes
    executor.release("g", 0)
    assert held_bytes() == 0
    executor.offload(1, "h", Tier.HOST, torch.ones(30, 40))
    executor.close()
    assert held_bytes() == 0


def test_two_executors_share_the_machine(machine: Machine, arena: Arena) -> None:
    sources = [at_home(machine, f"w{i}").add_(i) for i in range(2)]
    executors = [
        CpuExecutor(EMPTY, {"w": Binding.to(source)}, arena, machine) for source in sources
    ]
    for i, executor in enumerate(executors):  # tickets are each executor's own
        executor.fetch(0, "w", Tier.NVME, i * page_aligned(LAYOUT.nbytes))
    for source, executor in zip(sources, executors, strict=True):
        assert torch.equal(executor.wait(0, "w"), source)
        executor.close()
