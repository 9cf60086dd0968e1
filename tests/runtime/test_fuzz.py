"""What the fuzz executor does to code that forgets to wait, and to code that does not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator
from random import Random

import pytest
import torch
from torch import Tensor

from zcompile.ir import Tier, parse
from zcompile.runtime.arena import Arena
from zcompile.runtime.binding import Binding, Layout
from zcompile.runtime.executor import execute
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.fuzz import POISON, FuzzExecutor
from zcompile.runtime.homes import Homes
from zcompile.runtime.late import LateCopies
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.machine import Machine
from zcompile.runtime.pending import Pending
from zcompile.runtime.transfers import Transfers

COUNT = 1500
LAYOUT = Layout(torch.float32, (COUNT,), (1,))
SEEDS = range(12)

UPDATE = parse("""
schedule update.0
value %p : 6000 B parameter @ nvme
fetch %p <- nvme as t0 at 0
wait %p for t0
update add(%p) -> (%p) transient 0 B
offload %p -> nvme as t1
release %p after t1
arena 8192 B
""")


class Rig:
    """A machine, an arena, and fuzz executors over them."""

    def __init__(self, machine: Machine, arena: Arena) -> None:
        self.machine = machine
        self.arena = arena

    def executor(self, binding: Binding, seed: int, *, private: bool = False) -> FuzzExecutor:
        return FuzzExecutor(
            UPDATE,
            {"p": binding},
            self.arena,
            self.machine,
            seed=seed,
            private=("p",) if private else (),
        )

    def at_home(self) -> Tensor:
        home = self.machine.homes.fresh("p", Tier.NVME, torch.float32, (COUNT,), (1,))
        return home.copy_(torch.arange(COUNT))

    def slot(self) -> Tensor:
        """Return what a kernel would read that does not wait for a fetch to offset 0."""
        return self.arena.tensor(0, torch.float32, (COUNT,), (1,))


@pytest.fixture
def rig(
    homes: Homes, extent_file: ExtentFile, ledger: Ledger, io: FileIO
) -> Generator[Rig, None, None]:
    machine = Machine(homes, Transfers(extent_file, ledger, io=io), ledger)
    with machine.lease_arena(1 << 16) as arena:
        yield Rig(machine, arena)
    machine.close()


def is_poison(tensor: Tensor) -> bool:
    nbytes = Layout.of(tensor).nbytes
    return ctypes.string_at(tensor.data_ptr(), nbytes) == bytes([POISON]) * nbytes


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slot_is_poison_before_the_wait_and_after_the_release(rig: Rig, seed: int) -> None:
    source = rig.at_home()
    executor = rig.executor(Binding.to(source), seed)
    executor.fetch(0, "p", Tier.NVME, 0)
    assert is_poison(rig.slot())
    assert torch.equal(executor.wait(0, "p"), source)
    executor.release("p", None)
    assert is_poison(rig.slot())
    executor.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fresh_home_is_poison_until_the_release(rig: Rig, seed: int) -> None:
    executor = rig.executor(Binding(LAYOUT), seed)
    home = executor.offload(0, "p", Tier.NVME, torch.ones(COUNT))
    assert is_poison(home)
    executor.release("p", 0)
    assert torch.equal(home, torch.ones(COUNT))
    executor.close()


@pytest.mark.parametrize("private", [False, True])
def test_the_source_of_an_offload_is_poisoned_if_it_is_private(rig: Rig, private: bool) -> None:
    executor = rig.executor(Binding(LAYOUT), 0, private=private)
    gradient = torch.ones(COUNT)
    executor.offload(0, "p", Tier.NVME, gradient)
    executor.release("p", 0)
    assert is_poison(gradient) == private
    executor.close()


def landed_home(rig: Rig, seed: int, mistake: Callable[[FuzzExecutor, Tensor], None]) -> Tensor:
    """Return the home of a gradient of ones after ``mistake`` was made before its release."""
    executor = rig.executor(Binding(LAYOUT), seed, private=True)
    gradient = torch.ones(COUNT)
    home = executor.offload(0, "p", Tier.NVME, gradient)
    mistake(executor, gradient)
    executor.close()
    return home


def test_a_source_that_changes_before_it_landed_is_caught(rig: Rig) -> None:
    def change(executor: FuzzExecutor, gradient: Tensor) -> None:
        gradient.zero_()
        executor.release("p", 0)

    for seed in SEEDS:
        assert torch.equal(landed_home(rig, seed, change), torch.zeros(COUNT))


def test_a_release_that_does_not_wait_is_caught(rig: Rig) -> None:
    def release_early(executor: FuzzExecutor, gradient: Tensor) -> None:
        del gradient
        executor.release("p", None)

    homes = [landed_home(rig, seed, release_early) for seed in SEEDS]
    assert any(is_poison(home) for home in homes)
    assert not all(is_poison(home) for home in homes), "some seeds let copies happen early"


@pytest.mark.parametrize("seed", SEEDS)
def test_the_extent_that_an_update_replaced_is_poison(
    rig: Rig, extent_file: ExtentFile, seed: int
) -> None:
    parameter = rig.at_home()
    place = rig.machine.homes.find(parameter)
    assert place is not None
    before = place.home.lease
    assert before is not None
    executor = rig.executor(Binding.to(parameter), seed)
    executor.prepare()
    execute(UPDATE, executor, {"add": lambda of: {"p": of["p"].add_(1)}}, {})
    executor.commit()
    executor.close()
    assert torch.equal(parameter, torch.arange(COUNT) + 1)
    into = torch.zeros(COUNT)
    transfers = Transfers(extent_file, Ledger())
    transfers.read(before, 0, into.data_ptr(), LAYOUT.nbytes, "p").wait()
    transfers.close()
    assert is_poison(into)


class Noted:
    """A copy that writes its name down when it lands."""

    landed = True

    def __init__(self, log: list[str], name: str) -> None:
        log.append(name)

    def wait(self) -> None:
        """Return at once."""


class NotedCopies(Transfers):
    """Copies of memory that are only written down."""

    def __init__(self) -> None:
        super().__init__(None, Ledger())
        self.log: list[str] = []

    def copy_in(self, source: int, destination: int, nbytes: int, *, keep: object = None) -> Noted:
        del destination, nbytes, keep
        return Noted(self.log, f"in{source}")

    def copy_out(self, source: int, destination: int, nbytes: int, *, keep: object = None) -> Noted:
        del destination, nbytes, keep
        return Noted(self.log, f"out{source}")


def order_of_landing(seed: int) -> tuple[str, ...]:
    copies = NotedCopies()
    late = LateCopies(copies, Random(seed))
    pending: list[Pending] = []
    for i in range(4):
        pending.append(late.copy_in(i, 0, 0))
        pending.append(late.copy_out(i, 0, 0))
        late.advance()
    for each in reversed(pending):
        each.wait()
    return tuple(copies.log)


def test_every_late_copy_lands_once() -> None:
    for seed in range(30):
        assert sorted(order_of_landing(seed)) == sorted(
            f"{way}{i}" for way in ("in", "out") for i in range(4)
        )


def test_waiting_for_a_copy_lands_no_other() -> None:
    copies = NotedCopies()
    late = LateCopies(copies, Random(0))
    late.copy_in(0, 0, 0)
    late.copy_in(1, 0, 0).wait()
    assert copies.log == ["in1"]


def test_seeds_give_many_orders_and_each_seed_one() -> None:
    orders = [order_of_landing(seed) for seed in range(30)]
    assert orders == [order_of_landing(seed) for seed in range(30)]
    assert len(set(orders)) > 10


def test_an_error_of_a_late_copy_is_kept_for_whoever_waits() -> None:
    class Failing(NotedCopies):
        def copy_in(
            self, source: int, destination: int, nbytes: int, *, keep: object = None
        ) -> Noted:
            del destination, nbytes, keep
            raise OSError(f"copy {source}")

    late = LateCopies(Failing(), Random(0))
    first, second = late.copy_in(1, 0, 0), late.copy_in(2, 0, 0)
    for _ in range(20):
        late.advance()
    for pending, name in ((second, "copy 2"), (first, "copy 1"), (first, "copy 1")):
        with pytest.raises(OSError, match=name):
            pending.wait()
