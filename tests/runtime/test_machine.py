"""The arena that executors take turns in."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator

import pytest
import torch

from zcompile.ir import PAGE_BYTES, Tier
from zcompile.runtime.arena import Arena
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.machine import Machine
from zcompile.runtime.transfers import Transfers

SECONDS = 20.0


@pytest.fixture
def machine(ledger: Ledger) -> Generator[Machine, None, None]:
    machine = Machine(Homes(None, ledger), Transfers(None, ledger), ledger)
    yield machine
    machine.close()


def held_pages(machine: Machine) -> int:
    return machine.ledger.snapshot().held_bytes[Tier.DEVICE] // PAGE_BYTES


def peak_pages(machine: Machine) -> int:
    return machine.ledger.snapshot().peak_bytes[Tier.DEVICE] // PAGE_BYTES


def test_the_arena_grows_to_the_largest_lease(machine: Machine) -> None:
    for pages, mapped in ((2, 2), (1, 2), (5, 5), (3, 5)):
        with machine.lease_arena(pages * PAGE_BYTES) as arena:
            assert arena.nbytes == mapped * PAGE_BYTES
            assert held_pages(machine) == pages
    assert peak_pages(machine) == 5, "the old arena went before the new one came"


def test_a_smaller_lease_gives_the_rest_of_the_memory_back(machine: Machine) -> None:
    with machine.lease_arena(64 * PAGE_BYTES) as arena:
        arena.tensor(0, torch.uint8, (64 * PAGE_BYTES,), (1,)).fill_(7)
    with machine.lease_arena(PAGE_BYTES) as arena:
        seen = arena.tensor(0, torch.uint8, (64 * PAGE_BYTES,), (1,))
        assert seen[:PAGE_BYTES].eq(7).all()
        assert seen[PAGE_BYTES:].eq(0).all(), "memory that was given back comes back as zeros"


def test_a_lease_of_nothing_gives_all_of_it_back(machine: Machine) -> None:
    with machine.lease_arena(8 * PAGE_BYTES):
        pass
    with machine.lease_arena(0):
        assert held_pages(machine) == 0


def test_the_same_memory_is_lent_again(machine: Machine) -> None:
    with machine.lease_arena(PAGE_BYTES) as first:
        address = first.address
    with machine.lease_arena(PAGE_BYTES) as second:
        assert second.address == address


def test_a_nested_lease_has_memory_of_its_own(machine: Machine) -> None:
    with machine.lease_arena(PAGE_BYTES) as outer:
        with machine.lease_arena(2 * PAGE_BYTES) as inner, machine.lease_arena(PAGE_BYTES) as third:
            assert len({outer.address, inner.address, third.address}) == 3
            assert held_pages(machine) == 4
        assert held_pages(machine) == 1


def test_who_needs_no_bytes_waits_for_nobody(machine: Machine) -> None:
    with machine.lease_arena(PAGE_BYTES):
        assert in_another_thread(lambda: lease(machine, 0).nbytes) == 0


def test_another_thread_waits_for_its_turn(machine: Machine) -> None:
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        begun.set()
        with machine.lease_arena(PAGE_BYTES):
            ended.set()

    with machine.lease_arena(PAGE_BYTES):
        thread = threading.Thread(target=other)
        thread.start()
        assert begun.wait(SECONDS)
        assert not ended.wait(0.05)
    assert ended.wait(SECONDS)
    thread.join()
    assert peak_pages(machine) == 1


def test_an_error_ends_the_lease(machine: Machine) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), machine.lease_arena(PAGE_BYTES):
            raise KeyError
    with (
        pytest.raises(KeyError),
        machine.lease_arena(PAGE_BYTES),
        machine.lease_arena(PAGE_BYTES),
    ):
        raise KeyError
    assert held_pages(machine) == 1


def test_shrinking_frees_the_arena(machine: Machine) -> None:
    machine.shrink_arena()
    lease(machine, PAGE_BYTES)
    machine.shrink_arena()
    assert held_pages(machine) == 0
    assert lease(machine, PAGE_BYTES).nbytes == PAGE_BYTES
    machine.close()
    assert held_pages(machine) == 0


def test_tensors_outlive_the_arena(machine: Machine) -> None:
    with machine.lease_arena(PAGE_BYTES) as arena:
        tensor = arena.tensor(0, torch.float32, (4,), (1,)).fill_(3)
    machine.shrink_arena()
    assert tensor.tolist() == [3.0] * 4


def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent(machine: Machine) -> None:
    leased, done = threading.Event(), threading.Event()

    def hold() -> None:
        with machine.lease_arena(PAGE_BYTES):
            leased.set()
            done.wait(SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    assert leased.wait(SECONDS)
    child = os.fork()
    if child == 0:
        lease(machine, PAGE_BYTES)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join()


def lease(machine: Machine, nbytes: int) -> Arena:
    with machine.lease_arena(nbytes) as arena:
        return arena


def in_another_thread(call: Callable[[], int]) -> int:
    results: list[int] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join(SECONDS)
    return results[0]
