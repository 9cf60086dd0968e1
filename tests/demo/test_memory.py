"""The account of the process's memory."""

from __future__ import annotations

import mmap

from zcompile.demo.memory import ProcessMemory

HELD_BYTES = 64 << 20
SLACK_BYTES = 8 << 20


def test_the_peak_remembers_what_is_gone() -> None:
    memory = ProcessMemory()
    memory.restart_peak()
    with mmap.mmap(-1, HELD_BYTES) as held:
        for page in range(0, HELD_BYTES, mmap.PAGESIZE):
            held[page] = 1
        assert abs(memory.now_bytes() - HELD_BYTES) < SLACK_BYTES
    assert abs(memory.now_bytes()) < SLACK_BYTES
    assert abs(memory.peak_bytes() - HELD_BYTES) < SLACK_BYTES
    memory.restart_peak()
    assert abs(memory.peak_bytes()) < SLACK_BYTES
