"""A rest holds only while nobody else has had the bytes, whatever is written beside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from zcompile.ir import PAGE_BYTES, Tier
from zcompile.runtime.arena import Arena
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.gradient_facts import GradientFacts
from zcompile.runtime.homes import Homes
from zcompile.runtime.rest import Rest
from zcompile.runtime.transfers import Copies, Transfers, sums_refusal

STRIPED = True
NUMEL = 16 * PAGE_BYTES // 4
NUM_HOMES = 72
"""So many that some lie in a large page of the cache that holds nothing else."""


def written(homes: Homes, copies: Copies, tensor: Tensor, value: float) -> None:
    """Write the home past the page cache, as a schedule does."""
    place = homes.find(tensor)
    assert place is not None
    assert place.home.lease is not None
    memory = Arena(tensor.nbytes)
    memory.tensor(0, tensor.dtype, tensor.shape, (1,)).fill_(value)
    copies.write(place.home.lease, 0, memory.address, tensor.nbytes, "w", keep=memory).wait()


@pytest.fixture
def neighbours(homes: Homes, copies: Copies) -> list[Tensor]:
    """Homes side by side, all written by copies."""
    made = [homes.fresh("w", Tier.NVME, torch.float32, (NUMEL,), (1,)) for _ in range(NUM_HOMES)]
    for each in made:
        written(homes, copies, each, 1.5)
    return made


def can_tell(file: ExtentFile, copies: Copies) -> bool:
    assert isinstance(copies, Transfers)
    return sums_refusal(file, copies) is None


def scale(tensor: Tensor) -> None:
    tensor.data.mul_(3)


def store(tensor: Tensor) -> None:
    tensor.numpy()[7] = 0


def read(tensor: Tensor) -> None:
    assert tensor.sum() > 0


@pytest.mark.parametrize("eager", [scale, store, read])
@pytest.mark.parametrize("which", [0, 40, 60])
def test_direct_writes_beside_it_do_not_hide_that_it_was_touched(
    homes: Homes,
    copies: Copies,
    neighbours: list[Tensor],
    eager: Callable[[Tensor], None],
    which: int,
) -> None:
    tensor = neighbours[which]
    rest = Rest.of(homes, tensor)
    assert rest is not None
    eager(tensor)
    homes.trim()
    homes.look()  # as every schedule begins
    for each in neighbours:
        if each is not tensor:
            written(homes, copies, each, 2.5)
    assert not rest.holds(homes, tensor)


def test_a_sum_of_squares_is_not_used_then(
    homes: Homes, copies: Copies, neighbours: list[Tensor], extent_file: ExtentFile
) -> None:
    facts = GradientFacts(homes)
    facts.gathering = True
    for each in neighbours:
        facts.stored(each, torch.full((NUMEL,), 1.5))
    expected = NUMEL * 1.5**2 if can_tell(extent_file, copies) else None
    assert facts.square_sum(neighbours[40]) == expected
    scale(neighbours[40])
    homes.trim()
    homes.look()
    for each in neighbours:
        if each is not neighbours[40]:
            written(homes, copies, each, 2.5)
    assert facts.square_sum(neighbours[40]) is None


def test_looking_takes_nothing_from_what_nobody_touched(
    homes: Homes, copies: Copies, neighbours: list[Tensor], extent_file: ExtentFile
) -> None:
    rests = [Rest.of(homes, each) for each in neighbours]
    for _ in range(3):
        homes.trim()
        homes.look()
    holding = [
        rest is not None and rest.holds(homes, each)
        for rest, each in zip(rests, neighbours, strict=True)
    ]
    assert all(holding) == can_tell(extent_file, copies)


def test_leases_that_have_ended_are_watched_no_longer(
    homes: Homes, extent_file: ExtentFile
) -> None:
    for _ in range(100):
        tensor = homes.fresh("w", Tier.NVME, torch.float32, (NUMEL,), (1,))
        assert Rest.of(homes, tensor) is not None
        del tensor
    assert extent_file.lease(1, "w") is not None
    assert extent_file.num_watched <= 2
