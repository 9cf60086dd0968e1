"""The process stays as near to its plan as the allocator allows."""

from __future__ import annotations

import gc

import pytest
import torch

from zcompile.ir import Compute, Fetch, Release, Role, Schedule, Tier, Value, Wait, held_after_moves
from zcompile.runtime import libc, retention
from zcompile.runtime.procfs import ProcessPages, memory_use
from zcompile.runtime.retention import Retention, slack_bytes

MIB = 1 << 20


class Process:
    """A process whose memory the test decides; ``retained`` goes when it is given back."""

    def __init__(self) -> None:
        self.used = 100 * MIB
        self.retained = 0
        self.num_trims = 0

    def anonymous_bytes(self) -> int:
        return self.used + self.retained

    def give_back(self) -> None:
        self.retained = 0
        self.num_trims += 1

    def close(self) -> None:
        pass


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    process = Process()
    monkeypatch.setattr(retention, "ProcessPages", lambda: process)
    monkeypatch.setattr(libc, "return_freed_memory", process.give_back)
    return process


def test_a_process_that_follows_its_plan_is_left_alone(process: Process) -> None:
    watched = Retention([10 * MIB, 30 * MIB, 5 * MIB], slack=8 * MIB)
    for used in (110 * MIB - 10 * MIB, 120 * MIB, 95 * MIB):
        process.used = used
        watched.moved()
    assert process.num_trims == 1, "only at the start"


def test_retained_memory_is_given_back(process: Process) -> None:
    watched = Retention([10 * MIB, 10 * MIB, 10 * MIB], slack=8 * MIB)
    watched.moved()
    process.retained = 9 * MIB
    watched.moved()
    assert process.retained == 0
    watched.moved()
    assert process.num_trims == 2


def test_growth_that_is_not_ours_is_accepted_after_one_try(process: Process) -> None:
    watched = Retention([10 * MIB] * 4, slack=8 * MIB)
    process.used += 50 * MIB
    for _ in range(4):
        watched.moved()
    assert process.num_trims == 2


def test_the_slack_is_a_share_of_the_budget() -> None:
    assert slack_bytes(1 << 30) == 32 * MIB
    assert slack_bytes(1 * MIB) == 8 * MIB


def test_the_plan_is_read_off_the_moves() -> None:
    values = (
        Value("w", 4096, Role.PARAMETER, Tier.NVME),
        Value("x", 10, Role.INPUT, held=True),
        Value("y", 20, Role.INTERMEDIATE),
    )
    steps = (
        Fetch(0, "w", Tier.NVME, 0),
        Wait(0, "w"),
        Compute("k", ("x", "w"), ("y",), 100),
        Release("w"),
    )
    schedule = Schedule("forward", values, steps, ("y",), arena_bytes=4096)
    assert held_after_moves(schedule) == (4106, 4106, 4126)


def test_anonymous_pages_are_what_the_kernel_says() -> None:
    pages = ProcessPages()
    tensor = torch.ones(16 * MIB)
    assert abs(pages.anonymous_bytes() - memory_use().anonymous_bytes) < 4 * MIB
    assert tensor.sum() == 16 * MIB
    pages.close()


def test_freed_blocks_in_the_middle_of_the_heap_are_given_back() -> None:
    pages = ProcessPages()
    blocks = [torch.ones(8 << 10) for _ in range(2048)]  # 64 MiB in blocks of 32 KiB
    held = pages.anonymous_bytes()
    last = blocks[-1]
    del blocks
    gc.collect()
    watched = Retention([0], slack=MIB)
    assert pages.anonymous_bytes() < held - 40 * MIB
    assert last.sum() == 8 << 10
    watched.close()
    pages.close()
