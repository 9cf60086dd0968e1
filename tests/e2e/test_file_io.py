"""However files are read and written, training has the same bits within the same budget."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.e2e.test_tight_budgets import budgeted, model, trained
from tests.runtime.conftest import USABLE
from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.ir import Tier
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.native import NATIVE_VARIABLE

INPUT = torch.ones(4, 8)


def check_bits(way: FileIO, swap_dir: Path, **options: str) -> None:
    """Train with the smallest budget, and compare with plain PyTorch."""
    plain, ours, backend = model(), model(), Backend()
    with pytest.raises(BudgetError) as error:
        budgeted(model(), Backend(), device_budget=1000, nvme_dir=swap_dir, **options)(INPUT)
    least = error.value.smallest_bytes
    compiled = budgeted(ours, backend, device_budget=least, nvme_dir=swap_dir, **options)
    for new, old in zip(trained(ours, compiled), trained(plain, plain), strict=True):
        assert torch.equal(new, old)
    (session,) = backend.sessions(ours)
    assert session.choice.io is way
    assert session.machine.transfers.choice == session.choice
    peak_bytes = session.total().peak_bytes[Tier.DEVICE]
    assert peak_bytes <= least


@pytest.mark.parametrize("io", USABLE)
def test_every_way_that_is_asked_for(io: FileIO, swap_dir: Path) -> None:
    check_bits(io, swap_dir, io=io.value)


@pytest.mark.parametrize("io", USABLE)
def test_every_way_that_the_environment_asks_for(
    io: FileIO, swap_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZINF_IO", io.value)
    check_bits(io, swap_dir)


def test_without_the_native_library_python_does_it(
    swap_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NATIVE_VARIABLE, "0")
    check_bits(FileIO.PYTHON, swap_dir)


@pytest.mark.parametrize("io", ["uring", "threads"])
def test_a_way_that_does_not_work_is_refused(
    io: str, swap_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NATIVE_VARIABLE, "0")
    with pytest.raises(ValueError, match=f"io='{io}': .*ZINF_NATIVE=0.*; io='auto' takes"):
        budgeted(model(), Backend(), nvme_dir=swap_dir, io=io)(INPUT)
    assert list(swap_dir.iterdir()) == []
