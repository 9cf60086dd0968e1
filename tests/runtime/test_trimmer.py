"""Eager code walks homes, and resident pages stay within a window; nothing happens when idle."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import torch

from zcompile.ir import Tier
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.procfs import memory_use, resident_bytes_of
from zcompile.runtime.trimmer import BUSY_SECONDS, IDLE_SECONDS, Trimmer, Watch

MIB = 1 << 20


OTHERS: set[threading.Thread] = set()
"""Threads of models that other tests have left to the garbage collector."""


@pytest.fixture(autouse=True)
def _others() -> None:
    OTHERS.update(threading.enumerate())


def trimmers() -> list[threading.Thread]:
    return [
        thread
        for thread in threading.enumerate()
        if thread.name == "zinf-trimmer" and thread not in OTHERS
    ]


class Sampler:
    """The largest resident size of the process while it was watched, in bytes."""

    def __init__(self) -> None:
        self.start_bytes = memory_use().resident_bytes
        self.peak_bytes = self.start_bytes

    @contextmanager
    def watching(self) -> Generator[None, None, None]:
        over = threading.Event()

        def sample() -> None:
            while not over.wait(0.001):
                self.peak_bytes = max(self.peak_bytes, memory_use().resident_bytes)

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def test_a_walk_over_many_homes_holds_few_pages(homes: Homes) -> None:
    torch.set_num_threads(1)
    tensors = [homes.fresh("g", Tier.NVME, torch.float32, (4 * MIB,), (1,)) for _ in range(32)]
    for tensor in tensors:
        tensor.fill_(1e-3)
    homes.trim()
    sampler = Sampler()
    with sampler.watching():
        torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors]))
        for tensor in tensors:
            tensor.mul_(0.5)
    assert sampler.peak_bytes - sampler.start_bytes < 64 * MIB, "of 512 MiB walked twice"
    assert all(tensor[::4099].eq(5e-4).all() for tensor in tensors)


def test_the_thread_does_without_priority(
    homes: Homes, extent_file: ExtentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int, _policy: int, _param: os.sched_param) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    tensor = homes.fresh("g", Tier.NVME, torch.float32, (16 * MIB,), (1,)).fill_(1.0)
    deadline = time.monotonic() + 10
    while resident_bytes_of(extent_file.files[0].path) > 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert resident_bytes_of(extent_file.files[0].path) <= 8 * MIB
    assert tensor.eq(1.0).all()


def test_the_thread_comes_with_the_first_home_on_nvme_and_goes_with_close(
    extent_file: ExtentFile, ledger: Ledger
) -> None:
    homes = Homes(extent_file, ledger)
    host = homes.fresh("h", Tier.HOST, torch.float32, (10,), (1,))
    assert trimmers() == []
    tensor = homes.fresh("g", Tier.NVME, torch.float32, (10,), (1,))
    again = homes.fresh("g", Tier.NVME, torch.float32, (10,), (1,))
    assert len(trimmers()) == 1
    homes.close()
    homes.close()
    assert trimmers() == []
    del host, tensor, again


def test_the_thread_goes_with_the_homes(extent_file: ExtentFile, ledger: Ledger) -> None:
    homes = Homes(extent_file, ledger)
    tensor = homes.fresh("g", Tier.NVME, torch.float32, (10,), (1,))
    (thread,) = trimmers()
    del homes
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()
    tensor.fill_(1.0)


def test_an_idle_thread_uses_little_of_a_core(homes: Homes) -> None:
    tensor = homes.fresh("g", Tier.NVME, torch.float32, (10,), (1,))
    (thread,) = trimmers()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    shares: list[float] = []
    while len(shares) < 10 and min(shares, default=1.0) >= 0.03:  # a loaded machine adds to some
        start = time.clock_gettime(clock)
        time.sleep(1)
        shares.append(time.clock_gettime(clock) - start)
    assert min(shares) < 0.03
    del tensor


def test_trimming_at_the_start_of_a_graph_leaves_no_page(
    homes: Homes, extent_file: ExtentFile
) -> None:
    tensors = [homes.fresh("g", Tier.NVME, torch.float32, (MIB,), (1,)) for _ in range(3)]
    for tensor in tensors:
        tensor.fill_(1.0)
    homes.trim()
    assert torch.ones(100).sum().item() == 100.0
    assert resident_bytes_of(extent_file.files[0].path) == 0
    assert all(tensor.eq(1.0).all() for tensor in tensors)


def test_trimming_while_homes_come_go_and_are_written(
    extent_file: ExtentFile, ledger: Ledger
) -> None:
    homes = Homes(extent_file, ledger, window_bytes=0)
    over = threading.Event()

    def trim() -> None:
        while not over.is_set():
            homes.trim()

    thread = threading.Thread(target=trim)
    thread.start()
    try:
        for value in range(100):
            tensor = homes.fresh("g", Tier.NVME, torch.float32, (MIB // 4,), (1,)).fill_(value)
            other = torch.full((MIB // 4,), -1.0)
            assert tensor.eq(value).all()
            assert other.eq(-1.0).all()
    finally:
        over.set()
        thread.join()
        homes.close()


def test_the_watch_trims_beyond_the_window_only() -> None:
    watch = Watch(window_bytes=16, baseline_bytes=100)
    assert not watch.look(116)
    assert watch.seconds == BUSY_SECONDS
    assert watch.look(117)
    watch.trimmed(105)
    assert not watch.look(105)
    assert watch.seconds == 2 * BUSY_SECONDS
    assert not watch.look(121), "libraries grew by 5: they cannot be trimmed"
    assert not watch.look(90)
    assert watch.look(107), "the least that was seen counts"
    watch.trimmed(90)
    for _ in range(9):
        assert not watch.look(90)
    assert watch.seconds == IDLE_SECONDS


def test_a_stopped_trimmer_stays_stopped() -> None:
    class Owner:
        def trim(self) -> None:
            raise AssertionError

    owner = Owner()
    trimmer = Trimmer(owner.trim)
    trimmer.stop()
    trimmer.start()
    assert trimmers() == []


def test_a_finalizer_may_stop_the_thread_from_within() -> None:
    class Owner:
        def __init__(self) -> None:
            self.trimmer = Trimmer(self.trim, window_bytes=-1)

        def trim(self) -> None:
            self.trimmer.stop()

    owner = Owner()
    owner.trimmer.start()
    deadline = time.monotonic() + 10
    while trimmers() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert trimmers() == []


def test_importing_starts_no_thread() -> None:
    program = """
import os, pkgutil, threading
import torch, zcompile.runtime
before = os.listdir("/proc/self/task")
for module in pkgutil.iter_modules(zcompile.runtime.__path__, "zcompile.runtime."):
    __import__(module.name)
assert threading.active_count() == 1
assert os.listdir("/proc/self/task") == before
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_forked_child_has_no_trimmer_and_closes_at_once(homes: Homes) -> None:
    tensor = homes.fresh("g", Tier.NVME, torch.float32, (10,), (1,)).fill_(1.0)
    child = os.fork()
    if child == 0:
        homes.close()
        os._exit(len(trimmers()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(trimmers()) == 1
    assert tensor.eq(1.0).all()
