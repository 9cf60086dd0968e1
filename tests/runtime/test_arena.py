"""The arena: aligned memory that lives as long as its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from zcompile.ir import PAGE_BYTES
from zcompile.runtime.arena import Arena


def is_mapped(address: int) -> bool:
    maps = Path("/proc/self/maps").read_text().splitlines()
    ranges = (line.split()[0].split("-") for line in maps)
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


def test_memory_is_whole_aligned_pages() -> None:
    arena = Arena(PAGE_BYTES + 1)
    assert arena.nbytes == 2 * PAGE_BYTES
    assert arena.address % PAGE_BYTES == 0


def test_tensors_lie_at_their_offsets_and_share_the_memory() -> None:
    arena = Arena(3 * PAGE_BYTES)
    floats = arena.tensor(PAGE_BYTES, torch.float32, (4, 2), (2, 1))
    assert floats.data_ptr() == arena.address + PAGE_BYTES
    floats.fill_(1.0)
    again = arena.tensor(PAGE_BYTES, torch.int32, (8,), (1,))
    assert again.tolist() == [0x3F800000] * 8


def test_tensors_keep_the_memory_and_the_last_one_frees_it() -> None:
    arena = Arena(1 << 20)
    address = arena.address
    tensor = arena.tensor(0, torch.float64, (3,), (1,))
    del arena
    view = tensor.fill_(2.0)[1:]
    del tensor
    assert view.sum().item() == 4.0
    assert is_mapped(address)
    del view
    assert not is_mapped(address)


def test_an_empty_arena_and_empty_tensors_are_fine() -> None:
    arena = Arena(0)
    assert arena.nbytes == 0
    assert arena.tensor(0, torch.float32, (0, 3), (3, 1)).shape == (0, 3)


def test_a_tensor_beyond_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer"):
        Arena(PAGE_BYTES).tensor(PAGE_BYTES - 4, torch.float32, (2,), (1,))
