"""The queue of one channel: order, sharing, errors, and threads that go when nobody needs them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from zcompile.runtime.copy_queue import Carry, CopyQueue
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.pending import Completion

SECONDS = 20.0


class Gate:
    """Blocks are strings here.  They end while it is open; "bad" fails at once."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.started: list[str] = []
        self.opened = threading.Event()
        self.someone_started = threading.Semaphore(0)
        if is_open:
            self.opened.set()

    @contextmanager
    def outfit(self) -> Generator[Carry[str], None, None]:
        yield self.carry

    def carry(self, block: str) -> None:
        self.started.append(block)
        self.someone_started.release()
        if block == "bad":
            raise OSError(block)
        assert self.opened.wait(SECONDS)


def queue_of(gate: Gate, workers: int = 1) -> CopyQueue[str]:
    return CopyQueue(Channel.H2D, gate.outfit, workers)


def submit(
    queue: CopyQueue[str], *blocks: str, urgent: bool = False, keep: object = None
) -> Completion:
    completion = Completion(Channel.H2D, Ledger(), keep)
    queue.submit(iter(blocks), completion, urgent=urgent)
    return completion


def test_blocks_start_in_the_order_of_the_requests() -> None:
    gate = Gate()
    queue = queue_of(gate)
    copies = [submit(queue, f"{i}a", f"{i}b") for i in range(5)]
    for copy in copies:
        copy.wait()
    assert gate.started == [f"{i}{part}" for i in range(5) for part in "ab"]
    queue.close()


def test_an_urgent_request_overtakes_what_has_not_started() -> None:
    gate = Gate(is_open=False)
    queue = queue_of(gate)
    planned = submit(queue, "a1", "a2")
    assert gate.someone_started.acquire(timeout=SECONDS)
    urgent = submit(queue, "u1", urgent=True)
    gate.opened.set()
    urgent.wait()
    planned.wait()
    assert gate.started == ["a1", "u1", "a2"]
    queue.close()


def test_several_threads_share_one_request() -> None:
    gate = Gate(is_open=False)
    queue = queue_of(gate, workers=3)
    copy = submit(queue, "a", "b", "c")
    for _ in range(3):  # no block ends before the gate opens: all three are under way at once
        assert gate.someone_started.acquire(timeout=SECONDS)
    assert not copy.landed
    gate.opened.set()
    copy.wait()
    queue.close()


def test_an_error_ends_its_request_and_no_other() -> None:
    gate = Gate()
    queue = queue_of(gate)
    bad, good = submit(queue, "a", "bad", "never"), submit(queue, "b")
    for _ in range(2):
        with pytest.raises(OSError, match="bad"):
            bad.wait()
    good.wait()
    assert gate.started == ["a", "bad", "b"]
    queue.close()


def test_an_error_waits_for_the_blocks_under_way() -> None:
    gate = Gate(is_open=False)
    queue = queue_of(gate, workers=2)
    copy, other = submit(queue, "slow", "bad", "never"), submit(queue, "other")
    for _ in range(3):  # the thread that met the error has gone on to the other request
        assert gate.someone_started.acquire(timeout=SECONDS)
    assert not copy.landed
    gate.opened.set()
    other.wait()
    with pytest.raises(OSError, match="bad"):
        copy.wait()
    assert sorted(gate.started) == ["bad", "other", "slow"]
    queue.close()


def test_a_request_without_blocks_has_landed_and_starts_no_thread() -> None:
    before = threading.active_count()
    queue = queue_of(Gate())
    assert submit(queue).landed
    assert threading.active_count() == before


def test_the_owner_of_memory_lives_until_its_copy_is_over() -> None:
    class Owner:
        pass

    gate = Gate(is_open=False)
    queue = queue_of(gate)
    owner = Owner()
    alive = weakref.ref(owner)
    copy = submit(queue, "a", keep=owner)
    del owner
    gc.collect()
    assert alive() is not None
    gate.opened.set()
    copy.wait()
    queue.close()
    assert alive() is None


def test_close_finishes_what_is_queued_and_refuses_more() -> None:
    gate = Gate()
    queue = queue_of(gate)
    copies = [submit(queue, str(i)) for i in range(20)]
    queue.close()
    assert all(copy.landed for copy in copies)
    with pytest.raises(ValueError, match="closed"):
        submit(queue, "late")


def test_retire_ends_the_threads_without_waiting() -> None:
    queue = queue_of(Gate())
    submit(queue, "a").wait()
    (thread,) = [each for each in threading.enumerate() if each.name.startswith("zinf-h2d")]
    queue.retire()
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_a_forked_child_starts_threads_of_its_own() -> None:
    gate = Gate()
    queue = queue_of(gate)
    submit(queue, "parent").wait()
    child = os.fork()
    if child == 0:
        copy = submit(queue, "child")
        copy.wait()
        os._exit(0 if gate.started[-1] == "child" else 1)
    assert os.waitpid(child, 0)[1] == 0
    queue.close()


def test_a_copy_of_the_parent_is_an_error_in_the_child() -> None:
    gate = Gate(is_open=False)
    queue = queue_of(gate)
    copy = submit(queue, "parent")
    child = os.fork()
    if child == 0:
        try:
            copy.wait()
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    gate.opened.set()
    queue.close()


AT_EXIT = """
import time
from contextlib import contextmanager
from zcompile.runtime.copy_queue import CopyQueue
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.pending import Completion

@contextmanager
def outfit():
    def carry(block):
        time.sleep(0.05)
        print(block, flush=True)
    yield carry

queue = CopyQueue(Channel.H2D, outfit, 1)
queue.submit(iter("abc"), Completion(Channel.H2D, Ledger(), None))
"""


def test_the_interpreter_ends_after_what_was_queued() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == ["a", "b", "c"]
    assert not ended.stderr
