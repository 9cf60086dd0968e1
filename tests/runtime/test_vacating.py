"""Slots that are given back: what the system sees, what the ledger counts, what comes out."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from zcompile.ir import PAGE_BYTES, Tier, parse
from zcompile.runtime.arena import Arena
from zcompile.runtime.binding import Binding
from zcompile.runtime.executor import Kernels, execute
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.fuzz import FuzzExecutor
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.machine import Machine
from zcompile.runtime.transfers import Transfers

MEGABYTE = 1 << 20

FORWARD = parse(f"""
schedule forward.0
value %a : {3 * MEGABYTE} B parameter @ nvme
value %b : {MEGABYTE} B parameter @ host
value %c : 100 B parameter @ nvme
value %y : 8 B intermediate @ device
fetch %a <- nvme as t0 at 0
fetch %b <- host as t1 at {3 * MEGABYTE}
wait %a for t0
wait %b for t1
compute first(%a, %b) -> (%y) transient 8 B
release %a
fetch %c <- nvme as t2 at 4096
wait %c for t2
compute second(%b, %c, %y) -> (%y) transient 0 B
release %b
release %c
compute last(%y) -> (%y) transient 0 B
output %y
arena {4 * MEGABYTE} B vacated
""")


STATIC = replace(FORWARD, vacates=False)


def total(tensors: Mapping[str, Tensor], names: str) -> Tensor:
    """Return the sum of all elements, exact for those of these tests."""
    return torch.stack([tensors[name].sum(dtype=torch.float64) for name in names]).sum()


KERNELS: Kernels = {
    "first": lambda of: {"y": total(of, "ab")},
    "second": lambda of: {"y": of["y"] * 2 + total(of, "bc")},
    "last": lambda of: {"y": of["y"] + 1},
}


def expected(homes: Mapping[str, Tensor]) -> float:
    """Return what the kernels should come to."""
    return float(total(homes, "ab") * 2 + total(homes, "bc") + 1)


@pytest.fixture
def machine(
    homes: Homes, extent_file: ExtentFile, ledger: Ledger
) -> Generator[Machine, None, None]:
    machine = Machine(homes, Transfers(extent_file, ledger), ledger)
    yield machine
    machine.close()


def resident_bytes(address: int, nbytes: int) -> int:
    """Return how much of the memory from ``address`` on is resident, by ``/proc``'s pagemap."""
    pages = Path("/proc/self/pagemap")
    with pages.open("rb") as file:
        file.seek(address // PAGE_BYTES * 8)
        entries = memoryview(file.read(nbytes // PAGE_BYTES * 8)).cast("Q")
    return sum(entry >> 63 for entry in entries) * PAGE_BYTES


def process_bytes() -> int:
    """Return the anonymous memory of this process, as the system counts it."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def fill(arena: Arena, offset: int, nbytes: int) -> None:
    arena.tensor(offset, torch.uint8, (nbytes,), (1,)).fill_(1)


def test_a_slot_without_huge_pages_takes_its_own_pages_and_gives_them_back() -> None:
    arena = Arena(16 * MEGABYTE, huge_pages=False)
    before = process_bytes()
    fill(arena, 4 * PAGE_BYTES, 5 * MEGABYTE)
    assert resident_bytes(arena.address, arena.nbytes) == 5 * MEGABYTE
    assert process_bytes() - before == pytest.approx(5 * MEGABYTE, abs=MEGABYTE)
    arena.vacate(4 * PAGE_BYTES, 2 * MEGABYTE)
    assert resident_bytes(arena.address, arena.nbytes) == 3 * MEGABYTE
    assert process_bytes() - before == pytest.approx(3 * MEGABYTE, abs=MEGABYTE)
    seen = arena.tensor(4 * PAGE_BYTES, torch.uint8, (2 * MEGABYTE + 1,), (1,))
    assert (seen[0].item(), seen[-1].item()) == (0, 1)


def test_of_huge_pages_a_part_can_be_vacated_too() -> None:
    arena = Arena(16 * MEGABYTE)
    fill(arena, 0, arena.nbytes)
    arena.vacate(PAGE_BYTES, 5 * MEGABYTE)
    assert resident_bytes(arena.address, arena.nbytes) == 11 * MEGABYTE


def test_a_slot_past_the_arena_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="past the arena"):
        Arena(PAGE_BYTES).vacate(0, 2 * PAGE_BYTES)
    Arena(PAGE_BYTES).vacate(2 * PAGE_BYTES)
    Arena(PAGE_BYTES).vacate(0, 0)


def at_home(machine: Machine) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for value in FORWARD.values:
        if value.home is not Tier.DEVICE:
            count = value.nbytes // 4
            home = machine.homes.fresh(value.name, value.home, torch.float32, (count,), (1,))
            found[value.name] = home.copy_(torch.arange(count) % 1009)
    return found


def bindings(machine: Machine) -> dict[str, Binding]:
    return {name: Binding.to(home) for name, home in at_home(machine).items()}


def test_a_release_gives_exactly_its_slot_back(machine: Machine) -> None:
    with machine.executing(FORWARD, bindings(machine)) as executor:
        arena = machine_arena(machine)

        def held() -> int:
            return resident_bytes(arena.address, arena.nbytes)

        assert held() == 0
        executor.fetch(0, "a", Tier.NVME, 0)
        executor.wait(0, "a")
        assert held() == 3 * MEGABYTE
        executor.fetch(1, "b", Tier.HOST, 3 * MEGABYTE)
        kept = executor.wait(1, "b")
        assert held() == 4 * MEGABYTE
        executor.release("a", None)
        assert held() == MEGABYTE
        executor.fetch(2, "c", Tier.NVME, PAGE_BYTES)
        executor.wait(2, "c")
        assert held() == MEGABYTE + PAGE_BYTES
        assert kept[2000].item() == 2000 % 1009
    assert resident_bytes(arena.address, arena.nbytes) == 0, "what was not released went, too"


def test_a_static_arena_keeps_its_memory(machine: Machine) -> None:
    with machine.executing(STATIC, bindings(machine)) as executor:
        execute(STATIC, executor, KERNELS, {})
        arena = machine_arena(machine)
    assert resident_bytes(arena.address, arena.nbytes) == 4 * MEGABYTE


def test_both_kinds_take_turns(machine: Machine) -> None:
    result = expected(at_home(machine))
    for schedule, counted in ((FORWARD, 0), (STATIC, 4 * MEGABYTE), (FORWARD, 0)):
        with machine.executing(schedule, bindings(machine)) as executor:
            arena = machine_arena(machine)
            assert arena.huge_pages != schedule.vacates
            assert execute(schedule, executor, KERNELS, {})["y"].item() == result
            assert held_bytes(machine) == 4 * MEGABYTE
        assert held_bytes(machine) == counted


@pytest.mark.parametrize("seed", range(4))
def test_nothing_reads_a_slot_that_was_given_back(machine: Machine, seed: int) -> None:
    result = expected(at_home(machine))
    make = partial(FuzzExecutor, seed=seed)
    harsh = Machine(machine.homes, machine.transfers, machine.ledger, make)
    with harsh.executing(FORWARD, bindings(machine)) as executor:
        assert execute(FORWARD, executor, KERNELS, {})["y"].item() == result


def test_a_lease_by_slot_counts_what_is_held_at_once(machine: Machine) -> None:
    with machine.lease_arena(10 * PAGE_BYTES):
        pass
    assert held_bytes(machine) == 10 * PAGE_BYTES
    with machine.lease_arena(8 * PAGE_BYTES, held_bytes=3 * PAGE_BYTES) as arena:
        assert held_bytes(machine) == 3 * PAGE_BYTES
        with machine.lease_arena(5 * PAGE_BYTES, held_bytes=2 * PAGE_BYTES) as inner:
            assert not inner.huge_pages
            assert inner.address != arena.address
            assert held_bytes(machine) == 5 * PAGE_BYTES
        fill(arena, 0, PAGE_BYTES)
    assert held_bytes(machine) == 0
    assert resident_bytes(arena.address, arena.nbytes) == 0
    assert machine.ledger.snapshot().peak_bytes[Tier.DEVICE] == 10 * PAGE_BYTES


def test_an_error_ends_a_lease_by_slot(machine: Machine) -> None:
    with pytest.raises(KeyError), machine.lease_arena(MEGABYTE, held_bytes=PAGE_BYTES):
        raise KeyError
    assert held_bytes(machine) == 0


def machine_arena(machine: Machine) -> Arena:
    """Return the arena that the machine lends to one after the other."""
    arena = machine._arena  # pyright: ignore[reportPrivateUsage]
    assert arena is not None
    return arena


def held_bytes(machine: Machine) -> int:
    """Return the device bytes that count now; the homes of these tests are elsewhere."""
    return machine.ledger.snapshot().held_bytes[Tier.DEVICE]
