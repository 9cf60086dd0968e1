"""The pool: every chunk once, whoever asks and however many threads there are."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from zcompile.runtime.native import Native
from zcompile.runtime.pool import Pool

SECONDS = 20.0


def pool_threads() -> int:
    """Return how many threads of pools this process has."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            found += (task / "comm").read_text().strip() == "zinf-pool"
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
    return found


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
@pytest.mark.parametrize("num_chunks", [0, 1, 2, 7, 1000])
def test_every_chunk_runs_once(native: Native, num_threads: int, num_chunks: int) -> None:
    pool = Pool(native, num_threads)
    assert pool.num_threads == num_threads
    for _ in range(3):
        ran: list[int] = []
        pool.run(num_chunks, ran.append)
        assert Counter(ran) == Counter(range(num_chunks))


def test_threads_start_with_the_first_job_and_end_with_the_pool(native: Native) -> None:
    before = pool_threads()
    pool = Pool(native, 4)
    assert pool_threads() == before
    pool.run(100, lambda _: None)
    assert pool_threads() == before + 3
    del pool
    gc.collect()
    deadline = time.monotonic() + SECONDS
    while pool_threads() != before:  # the system lists a thread for a moment after its end
        assert time.monotonic() < deadline


def test_several_threads_work_on_one_job(native: Native) -> None:
    pool = Pool(native, 3)
    barrier = threading.Barrier(3)  # each of three chunks waits for the two others

    def chunk(_: int) -> None:
        barrier.wait(SECONDS)

    pool.run(3, chunk)
    assert not barrier.broken


def test_a_thread_that_is_done_steals_from_one_that_is_stuck(native: Native) -> None:
    pool = Pool(native, 2)
    others_ran = threading.Semaphore(0)

    def chunk(number: int) -> None:
        if number == 0:  # the first of its thread's own; the rest must be done meanwhile
            for _ in range(99):
                assert others_ran.acquire(timeout=SECONDS)
        else:
            others_ran.release()

    pool.run(100, chunk)


def test_a_job_may_start_another(native: Native) -> None:
    pool = Pool(native, 3)
    ran: list[tuple[int, int]] = []
    pool.run(5, lambda outer: pool.run(4, lambda inner: ran.append((outer, inner))))
    assert Counter(ran) == Counter((outer, inner) for outer in range(5) for inner in range(4))


def test_jobs_of_several_threads_follow_one_another(native: Native) -> None:
    pool = Pool(native, 2)
    ran: list[list[int]] = [[] for _ in range(4)]

    def call(mine: list[int]) -> None:
        for _ in range(20):
            pool.run(50, mine.append)

    callers = [threading.Thread(target=call, args=(mine,)) for mine in ran]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(SECONDS)
    assert all(Counter(mine) == Counter(list(range(50)) * 20) for mine in ran)


def test_the_size_by_default_is_what_the_process_may_run_on(native: Native) -> None:
    assert 1 <= Pool(native).num_threads <= len(os.sched_getaffinity(0))
    program = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from zcompile.runtime.native import load; from zcompile.runtime.pool import Pool\n"
        "print(Pool(load()).num_threads)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "1"


def test_pinned_threads_run_on_one_cpu_each(native: Native) -> None:
    pool = Pool(native, 3, pin=True)
    masks: dict[int, set[int]] = {}
    barrier = threading.Barrier(3)

    def chunk(_: int) -> None:
        masks[threading.get_native_id()] = os.sched_getaffinity(0)
        barrier.wait(SECONDS)

    pool.run(3, chunk)
    own = masks.pop(threading.get_native_id())
    assert own == os.sched_getaffinity(0), "the calling thread is left alone"
    assert [len(mask) for mask in masks.values()] == [1, 1]
    assert set().union(*masks.values()) <= own


@pytest.mark.parametrize("num_threads", [0, -1, 5000])
def test_a_size_that_makes_no_sense(native: Native, num_threads: int) -> None:
    with pytest.raises(ValueError, match=f"num_threads={num_threads}: give 1 to 4096"):
        Pool(native, num_threads)


def test_a_forked_child_has_threads_of_its_own(native: Native) -> None:
    pool = Pool(native, 3)
    pool.run(10, lambda _: None)
    child = os.fork()
    if child == 0:
        ran: list[int] = []
        pool.run(200, ran.append)
        del pool
        gc.collect()
        os._exit(0 if sorted(ran) == list(range(200)) else 1)
    assert os.waitpid(child, 0)[1] == 0
    ours: list[int] = []
    pool.run(50, ours.append)
    assert sorted(ours) == list(range(50))


def test_idle_threads_sleep(native: Native) -> None:
    pool = Pool(native, 4)
    pool.run(100, lambda _: None)
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "zinf-pool":
            deadline = time.monotonic() + SECONDS
            while (task / "stat").read_text().rpartition(")")[2].split()[0] != "S":
                assert time.monotonic() < deadline
