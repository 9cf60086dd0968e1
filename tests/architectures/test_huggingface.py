"""Tiny models of many families from transformers train with the bits of plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.architectures.families import FAMILIES
from tests.architectures.family import Reference
from tests.e2e.jobs import Compile, Job, Record, Training, compiled, differences, train
from tests.e2e.plans import bytes_by_kind, check_budgets, session_of, smallest_for_session
from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.options import Options
from zcompile.runtime.ledger import Channel
from zcompile.session import Session

# Dynamo warns of what it meets in the code of transformers; that is no fault of ours.
pytestmark = pytest.mark.filterwarnings("default")

ITERATIONS = 5

AMPLE = "1GiB"

SAMPLE = ("bloom", "albert", "gpt-oss", "convnext", "whisper", "mamba-2")
"""Tried by default: a decoder and one of each kind that is unlike it."""


@pytest.mark.parametrize(
    "name",
    [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES],
)
def test_a_family_trains_with_the_bits_of_plain_pytorch(name: str, swap_dir: Path) -> None:
    family = FAMILIES[name]
    job = family.job()
    options = {"compute": "eager", "nvme_dir": str(swap_dir)}
    want = train(job, wanted(family.reference), ITERATIONS)
    ample, got = trained(job, {**options, "device_budget": AMPLE})
    assert differences(got, want) == []
    tight, got = trained_tightly(
        job, options, smallest_for_session(ample.session, Options.parse(options))
    )
    assert differences(got, want) == []
    check_everything_moves(tight)


def wanted(reference: Reference) -> Compile:
    """Return how a model is compiled whose bits are wanted."""

    def compile_model(model: nn.Module) -> Any:
        return model if reference == "eager" else torch.compile(model, backend=reference)

    return compile_model


class Run:
    """A training, and the backend that has compiled its model."""

    def __init__(self, job: Job, options: dict[str, Any]) -> None:
        torch.compiler.reset()
        self.backend = Backend()
        self.training = Training(job, lambda model: compiled(model, options, self.backend))

    @property
    def model(self) -> nn.Module:
        return self.training.model

    @property
    def session(self) -> Session:
        return session_of(self.backend, self.model)


def trained(job: Job, options: dict[str, Any]) -> tuple[Run, list[Record]]:
    run = Run(job, options)
    return run, list(run.training.iterations(ITERATIONS))


def trained_tightly(job: Job, options: dict[str, Any], least: int) -> tuple[Run, list[Record]]:
    """Train with 1.1 times the least device budget that works.

    All graphs work with ``least``; the update of the weights may need more, and names it.
    """
    while True:
        try:
            return trained(job, {**options, "device_budget": least * 11 // 10})
        except BudgetError as error:
            least = more_than(least, error)


def more_than(least: int, error: BudgetError) -> int:
    """Return the device budget that ``error`` asks for, which has to be more than ``least``."""
    assert error.option == "device_budget"
    assert error.smallest_bytes > least
    return error.smallest_bytes


def check_everything_moves(run: Run) -> None:
    """Check that all trained parameters are managed, and that most states travel.

    In each iteration at least half of all parameters, gradients and states is written home;
    all budgets are kept.
    """
    session = run.session
    trained = [each for each in run.model.parameters() if each.grad is not None]
    assert trained
    assert all(session.name_of(each) is not None for each in trained)
    half = sum(bytes_by_kind(session).values()) // 2
    assert [each.moved_bytes[Channel.NVME_WRITE] >= half for each in session.iterations()] == [
        True
    ] * ITERATIONS
    check_budgets(session)
