"""Thousands of tensors in files: no descriptor for any, and no more mappings than there may be."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from zcompile.ir import Tier
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.shadows import Shadows
from zcompile.runtime.spot import Region
from zcompile.runtime.transfers import Transfers

MANY = 3000
MAX_MAPPINGS = 80


@pytest.fixture
def extent_file(tmp_path: Path) -> Generator[ExtentFile]:
    folder = RunFolder.create(tmp_path / "swap")
    file = ExtentFile(folder, slab_bytes=1 << 20)
    yield file
    file.close()
    folder.close()


def fresh(homes: Homes, number: int, tier: Tier = Tier.NVME) -> list[Tensor]:
    return [homes.fresh(f"w{at}", tier, torch.float32, (3,), (1,)) for at in range(number)]


def num_mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.NVME])
def test_homes_take_no_descriptors_and_few_mappings(extent_file: ExtentFile, tier: Tier) -> None:
    homes = Homes(extent_file, Ledger())
    fresh(homes, 1, tier)
    descriptors, mappings = len(os.listdir("/proc/self/fd")), num_mappings()
    tensors = fresh(homes, MANY, tier)
    for at, each in enumerate(tensors):
        each.fill_(at)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # what the trimmer looks at
    assert num_mappings() < mappings + MANY // 10
    assert all(each[2] == at for at, each in enumerate(tensors))
    homes.close()


def replace_all(homes: Homes, transfers: Transfers, tensors: list[Tensor], value: float) -> None:
    """Update ``tensors`` as an executor does."""
    sources = {f"w{at}": each for at, each in enumerate(tensors)}
    new = torch.full((3,), value, device="cpu")
    shadows = Shadows(homes, sources)
    shadows.prepare()
    region = Region(new.data_ptr(), new.nbytes, new.nbytes, new)
    for name in sources:
        shadows.spot(name).store(transfers, region, name).wait()
    shadows.commit(sources.keys())


def test_updates_take_no_more_mappings_than_there_may_be(extent_file: ExtentFile) -> None:
    ledger = Ledger()
    homes = Homes(extent_file, ledger, max_mappings=MAX_MAPPINGS)
    transfers = Transfers(extent_file, ledger)
    tensors = fresh(homes, 100)
    replace_all(homes, transfers, tensors[:20], 1.0)  # as many as may be swapped
    mappings = num_mappings()
    with pytest.warns(UserWarning, match=r"raise the system setting vm\.max_map_count"):
        replace_all(homes, transfers, tensors, 2.0)
    replace_all(homes, transfers, tensors[:20], 3.0)  # those again
    assert num_mappings() <= mappings + 5  # stacks of the threads that copy
    assert [each[1].item() for each in tensors] == [3.0] * 20 + [2.0] * 80
    del tensors[:10]
    fresh(homes, 1)  # from here on it is known that ten have gone
    replace_all(homes, transfers, tensors[-10:], 4.0)
    assert all(each.eq(4).all() for each in tensors[-10:])
    transfers.close()
    homes.close()
