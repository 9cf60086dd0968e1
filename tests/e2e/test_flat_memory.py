"""Two hundred iterations hold no more than forty, and nothing outlives the model."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from tests.e2e.jobs import compiled
from tests.e2e.models import LanguageModel
from zcompile.backend import Backend
from zcompile.ir import Tier
from zcompile.runtime import libc
from zcompile.runtime.procfs import memory_use

SETTLED, END = 40, 200
MAX_GROWTH_BYTES = 4 << 20
"""A leak of one activation an iteration, 16 KiB, would fill this well before the end."""

TIGHT, AMPLE = "1MiB", "1GiB"


@dataclass(frozen=True)
class Holdings:
    """What this process has: tensors by number, threads, open files."""

    tensors: int
    threads: int
    files: tuple[str, ...]

    @classmethod
    def now(cls) -> Holdings:
        gc.collect()
        # The class as it is, not as an object gives itself out: asking that wakes lazy ones.
        # So the fake tensors of what Dynamo traced last are left out too: they have no memory.
        objects = (each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter))
        tensors = sum(each.numel() > 0 for each in objects)
        return cls(tensors, threading.active_count(), tuple(sorted(_open_files())))

    @classmethod
    def without_compiled_code(cls) -> Holdings:
        """Return the same without what Dynamo keeps for the next model of the class."""
        torch.compiler.reset()
        return cls.now()


def _open_files() -> list[str]:
    found: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the folder itself, open while it was read
            continue
    return found


def _anonymous_bytes() -> int:
    gc.collect()
    libc.return_freed_memory()
    return memory_use().anonymous_bytes


class Training:
    """A small language model in training under ``options``."""

    def __init__(self, options: Mapping[str, object], backend: Backend) -> None:
        torch.manual_seed(0)
        self.model = LanguageModel(width=64, depth=2, words=128)
        self.call = compiled(self.model, options, backend)
        self.optimizer = AdamW(self.model.parameters())

    def iterate(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        words = torch.randint(0, 128, (4, 17), generator=generator)
        scores = self.call(words[:, :-1])
        loss: Any = functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize("budget", [TIGHT, AMPLE])
def test_memory_is_flat_and_everything_goes_with_the_model(budget: str, swap_dir: Path) -> None:
    backend = Backend()
    options = {"compute": "eager", "device_budget": budget, "nvme_dir": swap_dir}
    Training(options, backend).iterate(0)  # what torch makes once in a process
    before = Holdings.without_compiled_code()
    training = Training(options, backend)
    for number in range(SETTLED):
        training.iterate(number)
    (session,) = backend.sessions(training.model)
    assert (session.planner.resident_bytes < _bytes_of_all(training)) == (budget == TIGHT)
    settled, settled_bytes = Holdings.now(), _anonymous_bytes()
    held = session.ledger.snapshot().held_bytes
    for number in range(SETTLED, END):
        training.iterate(number)
    assert Holdings.now() == settled
    assert session.ledger.snapshot().held_bytes == held
    assert _anonymous_bytes() - settled_bytes < MAX_GROWTH_BYTES

    gone = [weakref.ref(each) for each in (session, training.model, training.optimizer)]
    tensors = [weakref.ref(each) for each in training.model.parameters()]
    ledger = session.ledger
    del session, training
    gc.collect()
    assert [each() for each in gone] == [None] * len(gone)
    assert not any(each() is not None for each in tensors)
    assert not list(swap_dir.iterdir())
    assert not any(ledger.snapshot().held_bytes[tier] for tier in (Tier.HOST, Tier.NVME))
    assert Holdings.without_compiled_code() == before


def _bytes_of_all(training: Training) -> int:
    """Return the bytes of all weights, gradients and states."""
    states = (
        each
        for of_one in cast("Mapping[object, Mapping[str, Any]]", training.optimizer.state).values()
        for name, each in of_one.items()
        if name != "step"
    )
    parameters = sum(each.nbytes for each in training.model.parameters())
    return 2 * parameters + sum(int(each.nbytes) for each in states)
