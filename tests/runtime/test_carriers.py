"""Both carriers: what lives as long as a copy, forked children, the end of the interpreter."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.runtime.conftest import USABLE
from zcompile.ir import PAGE_BYTES
from zcompile.runtime.arena import Arena
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO, choose, refusal
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.native import NATIVE_VARIABLE
from zcompile.runtime.native_carrier import NativeCarrier
from zcompile.runtime.native_io import IOCall
from zcompile.runtime.transfers import Transfers

SECONDS = 60.0
NATIVE = [io for io in USABLE if io is not FileIO.PYTHON]


@pytest.fixture
def transfers(
    extent_file: ExtentFile, ledger: Ledger, io: FileIO
) -> Generator[Transfers, None, None]:
    transfers = Transfers(extent_file, ledger, io=io)
    yield transfers
    transfers.close()


class Owner:
    """Stands for whatever owns the memory of a copy."""


class Gate:
    """Holds the calls of a native engine until it is opened."""

    def __init__(self, transfers: Transfers) -> None:
        assert isinstance(transfers.carrier, NativeCarrier)
        self.reached, self.opened = threading.Event(), threading.Event()
        transfers.carrier.io.inject(self)

    def __call__(self, after: bool, _: IOCall) -> None:
        if not after:
            self.reached.set()
            assert self.opened.wait(SECONDS)


@pytest.mark.parametrize("io", NATIVE)
def test_the_owner_of_memory_lives_until_its_copy_is_over(
    transfers: Transfers, extent_file: ExtentFile
) -> None:
    gate, memory, owner = Gate(transfers), Arena(PAGE_BYTES), Owner()
    alive = weakref.ref(owner)
    lease = extent_file.lease(PAGE_BYTES, "w")
    held = extent_file.leased_bytes
    copy = transfers.read(lease, 0, memory.address, PAGE_BYTES, "w", keep=owner)
    del owner, lease
    gc.collect()
    assert alive() is not None
    assert extent_file.leased_bytes == held
    assert not copy.landed
    gate.opened.set()
    copy.wait()
    assert alive() is None
    assert extent_file.leased_bytes == held - PAGE_BYTES


@pytest.mark.parametrize("io", NATIVE)
def test_what_nobody_waits_for_is_let_go_at_the_next_copy(
    transfers: Transfers, extent_file: ExtentFile
) -> None:
    memory, owner = Arena(PAGE_BYTES), Owner()
    alive = weakref.ref(owner)
    lease = extent_file.lease(PAGE_BYTES, "w")
    transfers.read(lease, 0, memory.address, PAGE_BYTES, "w", keep=owner)
    del owner
    # The channel serves in order, so once this one has landed the one before it is over.
    transfers.read(lease, 0, memory.address, PAGE_BYTES, "w").wait()
    transfers.read(lease, 0, memory.address, PAGE_BYTES, "w").wait()
    transfers.close()
    assert alive() is None


@contextmanager
def signals_interrupt() -> Generator[None]:
    """Let SIGINT interrupt, also in a process that was started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("io", NATIVE)
def test_waiting_can_be_interrupted(transfers: Transfers, extent_file: ExtentFile) -> None:
    gate, memory = Gate(transfers), Arena(PAGE_BYTES)
    copy = transfers.read(
        extent_file.lease(PAGE_BYTES, "w"), 0, memory.address, PAGE_BYTES, "w", keep=memory
    )
    assert gate.reached.wait(SECONDS)
    interrupting = threading.Thread(target=signal.raise_signal, args=(signal.SIGINT,))

    def interrupted_wait() -> None:  # before the wait or in the middle of it
        interrupting.start()
        copy.wait()

    with signals_interrupt(), pytest.raises(KeyboardInterrupt):
        interrupted_wait()
    gate.opened.set()
    copy.wait()


def test_a_forked_child_starts_threads_of_its_own(
    transfers: Transfers, extent_file: ExtentFile
) -> None:
    memory = Arena(PAGE_BYTES)
    lease = extent_file.lease(PAGE_BYTES, "w")
    transfers.write(lease, 0, memory.address, PAGE_BYTES, "w").wait()
    child = os.fork()
    if child == 0:
        transfers.read(lease, 0, memory.address, PAGE_BYTES, "w").wait()
        transfers.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    transfers.read(lease, 0, memory.address, PAGE_BYTES, "w").wait()


@pytest.mark.parametrize("io", NATIVE)
def test_a_copy_of_the_parent_is_an_error_in_the_child(
    transfers: Transfers, extent_file: ExtentFile
) -> None:
    gate, memory = Gate(transfers), Arena(PAGE_BYTES)
    copy = transfers.read(
        extent_file.lease(PAGE_BYTES, "w"), 0, memory.address, PAGE_BYTES, "w", keep=memory
    )
    assert gate.reached.wait(SECONDS)
    child = os.fork()
    if child == 0:
        try:
            copy.wait()
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    gate.opened.set()
    copy.wait()


AT_EXIT = """
import sys
from pathlib import Path
from zcompile.runtime.arena import Arena
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.transfers import Transfers

NBYTES = 8 << 20
file = ExtentFile(RunFolder.create(Path(sys.argv[1])))
transfers = Transfers(file, Ledger(), io=FileIO(sys.argv[2]))
memory = Arena(NBYTES)
lease = file.lease(NBYTES, "w")
copies = [transfers.write(lease, 0, memory.address, NBYTES, "w", keep=memory) for _ in range(20)]
"""


def test_the_interpreter_ends_quietly_with_copies_under_way(tmp_path: Path, io: FileIO) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_EXIT, str(tmp_path / "swap"), io.value],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert not ended.stderr
    assert list((tmp_path / "swap").iterdir()) == []


def test_time_spent_waiting_is_exposed(
    transfers: Transfers, ledger: Ledger, extent_file: ExtentFile
) -> None:
    memory = Arena(64 << 20)
    lease = extent_file.lease(64 << 20, "w")
    transfers.write(lease, 0, memory.address, 64 << 20, "w").wait()
    counted = ledger.snapshot()
    assert counted.moved_bytes[Channel.NVME_WRITE] == 64 << 20
    assert counted.exposed_seconds[Channel.NVME_WRITE] > 0


def test_the_choice_says_why_nothing_better(monkeypatch: pytest.MonkeyPatch) -> None:
    best = choose(FileIO.AUTO)
    assert best.io is USABLE[0]
    assert best.because == refusal(FileIO.URING)
    assert choose(FileIO.PYTHON).native is None
    monkeypatch.setenv(NATIVE_VARIABLE, "0")
    without = choose(FileIO.AUTO)
    assert without.io is FileIO.PYTHON
    assert without.because == ("there is no native library: ZINF_NATIVE=0 asks to do without it")
    assert choose(FileIO.BUFFERED).native is None
