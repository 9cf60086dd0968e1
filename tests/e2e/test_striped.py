"""Files in one folder or striped over several: training has the same bits."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.e2e.test_tight_budgets import budgeted, trained
from tests.runtime.conftest import USABLE
from zcompile.backend import Backend
from zcompile.ir import Tier
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.stripes import STRIPE_BYTES

WIDTH = 1600
BUDGET = "40MiB"


def model() -> nn.Module:
    """Return a model with weights of 10 MB, larger than a stripe."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())


@cache
def plain() -> list[Tensor]:
    whole = model()
    return trained(whole, whole)


def check_bits(swap_dir: Path, num_folders: int, **options: object) -> None:
    folders = [swap_dir / str(at) for at in range(num_folders)]
    ours, backend = model(), Backend()
    place = {"*": "nvme", "parameters": "nvme", "gradients": "nvme", "optimizer": "nvme"}
    compiled = budgeted(
        ours, backend, device_budget=BUDGET, nvme_dir=folders, place=place, **options
    )
    for new, old in zip(trained(ours, compiled), plain(), strict=True):
        assert torch.equal(new, old)
    (session,) = backend.sessions(ours)
    assert session.total().peak_bytes[Tier.DEVICE] <= session.planned_peak_bytes
    (home,) = {session.machine.homes.find(each) for each in [ours[2].weight]}  # type: ignore[index]
    assert home is not None
    lease = home.home.lease
    assert lease is not None
    pieces = list(lease.pieces())
    assert {each.file for each in pieces} == set(range(num_folders))
    assert num_folders == 1 or all(each.nbytes <= STRIPE_BYTES for each in pieces)
    for folder in folders:
        (run,) = folder.iterdir()
        assert run.name.startswith("zinf-")


@pytest.mark.parametrize("num_folders", [1, 2, 3])
def test_any_number_of_folders(num_folders: int, swap_dir: Path) -> None:
    check_bits(swap_dir, num_folders)


@pytest.mark.parametrize("io", [each for each in USABLE if each is not FileIO.URING])
def test_two_folders_in_every_way(io: FileIO, swap_dir: Path) -> None:
    check_bits(swap_dir, 2, io=io.value)


def test_two_folders_and_updates_that_begin_early(swap_dir: Path) -> None:
    check_bits(swap_dir, 2, early_update=True)
