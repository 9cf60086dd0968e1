"""DeepSpeed's async_io at its best setting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SETTINGS = tuple(product((1 << 20, 8 << 20), (32, 128), (1, 4)))
"""Block size, queue depth and threads."""

Timed = Callable[[Callable[[], object]], tuple[float, float]]


@dataclass(frozen=True)
class Rival:
    """One file and one tensor; ``locked`` says that the tensor cannot be paged out."""

    path: Path
    nbytes: int
    locked: bool

    def __post_init__(self) -> None:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")

    def best(self, direction: str, timed: Timed) -> tuple[str, Callable[[], tuple[float, float]]]:
        """Return the fastest setting's name, and what times one transfer with it."""
        from deepspeed.ops.op_builder import AsyncIOBuilder

        module = AsyncIOBuilder().load(verbose=False)
        found: list[tuple[float, tuple[int, int, int]]] = []
        for setting in SETTINGS:
            handle = _handle(module, setting)
            tensor = self._tensor(handle)
            self._move(handle, tensor, "write")
            start = time.perf_counter()
            self._move(handle, tensor, direction)
            found.append((time.perf_counter() - start, setting))
            self._free(handle, tensor)
        _, setting = min(found)
        handle = _handle(module, setting)
        tensor = self._tensor(handle)
        name = f"async_io {'locked' if self.locked else 'ordinary'} " + " ".join(map(str, setting))
        return name, lambda: timed(lambda: self._move(handle, tensor, direction))

    def _tensor(self, handle: Any) -> Tensor:
        if self.locked:
            return handle.new_cpu_locked_tensor(self.nbytes, torch.empty(0, dtype=torch.uint8))
        return torch.zeros(self.nbytes, dtype=torch.uint8)

    def _free(self, handle: Any, tensor: Tensor) -> None:
        if self.locked:
            handle.free_cpu_locked_tensor(tensor)

    def _move(self, handle: Any, tensor: Tensor, direction: str) -> None:
        call = handle.sync_pread if direction == "read" else handle.sync_pwrite
        call(tensor, str(self.path), 0)


def _handle(module: Any, setting: tuple[int, int, int]) -> Any:
    block_bytes, depth, threads = setting
    # Several submitted at once, and awaited while others are under way: its own advice.
    return module.aio_handle(block_bytes, depth, False, True, threads)
