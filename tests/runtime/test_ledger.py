"""The account of held and moved bytes."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from zcompile.ir import Tier
from zcompile.runtime.ledger import Channel, Ledger


def test_peaks_are_what_was_held_at_once(ledger: Ledger) -> None:
    ledger.hold(Tier.NVME, 10)
    ledger.drop(Tier.NVME, 10)
    ledger.hold(Tier.NVME, 7)
    ledger.hold(Tier.HOST, 3)
    now = ledger.snapshot()
    assert now.held_bytes == {Tier.DEVICE: 0, Tier.HOST: 3, Tier.NVME: 7}
    assert now.peak_bytes == {Tier.DEVICE: 0, Tier.HOST: 3, Tier.NVME: 10}


def test_a_lap_is_what_happened_since_the_last_one(ledger: Ledger) -> None:
    ledger.hold(Tier.DEVICE, 100)
    ledger.drop(Tier.DEVICE, 60)
    ledger.moved(Channel.NVME_READ, 5)
    assert ledger.lap().peak_bytes[Tier.DEVICE] == 100
    ledger.moved(Channel.NVME_READ, 6)
    ledger.exposed(Channel.H2D, 0.5)
    ledger.eager(9)
    lap = ledger.lap()
    assert lap.peak_bytes[Tier.DEVICE] == lap.held_bytes[Tier.DEVICE] == 40
    assert lap.moved_bytes[Channel.NVME_READ] == 6
    assert lap.exposed_seconds[Channel.H2D] == 0.5
    assert lap.eager_bytes == 9
    assert ledger.snapshot().moved_bytes[Channel.NVME_READ] == 11
    assert ledger.snapshot().peak_bytes[Tier.DEVICE] == 100


def test_the_difference_of_two_snapshots(ledger: Ledger) -> None:
    ledger.moved(Channel.D2H, 5)
    before = ledger.snapshot()
    ledger.moved(Channel.D2H, 4)
    ledger.hold(Tier.HOST, 8)
    spent = ledger.snapshot().since(before)
    assert spent.moved_bytes[Channel.D2H] == 4
    assert spent.held_bytes[Tier.HOST] == 8


def test_a_snapshot_cannot_be_changed(ledger: Ledger) -> None:
    with pytest.raises(TypeError):
        ledger.snapshot().held_bytes[Tier.HOST] = 1  # type: ignore[index]


def test_threads_lose_no_count(ledger: Ledger) -> None:
    def count() -> None:
        for _ in range(2000):
            ledger.moved(Channel.NVME_WRITE, 1)
            ledger.hold(Tier.HOST, 2)
            ledger.drop(Tier.HOST, 2)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = ledger.snapshot()
    assert now.moved_bytes[Channel.NVME_WRITE] == 8000
    assert now.held_bytes[Tier.HOST] == 0
    assert now.peak_bytes[Tier.HOST] <= 8


def test_finalizers_may_drop_in_the_middle_of_anything(ledger: Ledger) -> None:
    class Held:
        def __init__(self) -> None:
            self.me = self
            ledger.hold(Tier.HOST, 1)
            weakref.finalize(self, ledger.drop, Tier.HOST, 1)

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Held()
            ledger.snapshot()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert ledger.snapshot().held_bytes[Tier.HOST] == 0
