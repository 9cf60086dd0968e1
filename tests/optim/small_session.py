"""A session of a few parameters, without any compiled graph around it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter

from zcompile.ir import Schedule, Target, Tier
from zcompile.optim import Takeover
from zcompile.passes.pipeline import PIPELINE, run_within_budget
from zcompile.precision import Precision
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.machine import Machine, MakeExecutor
from zcompile.runtime.syscalls import Syscalls
from zcompile.runtime.transfers import Transfers

Placement = Callable[[str], Tier]

WINDOW_BYTES = 192 << 10
"""What an update may take in these tests, beside I/O buffers and what rests on the device."""


def all_on(tier: Tier) -> Placement:
    return lambda _value: tier


def mixed(value: str) -> Tier:
    """Spread the values over all tiers, and those of one parameter too."""
    return tuple(Tier)[sum(map(ord, value)) % 3]


class SmallSession:
    """Manages named parameters: gives them homes, and a takeover for their optimizers."""

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Parameter],
        placement: Placement,
        *,
        window_bytes: int | None = WINDOW_BYTES,
        calls: Syscalls | None = None,
        io: FileIO = FileIO.AUTO,
        make_executor: MakeExecutor = CpuExecutor,
        precision: Precision | None = None,
    ) -> None:
        self.precision = precision or Precision()
        self.parameters = dict(parameters)
        self.placement = placement
        self.plans: list[Schedule] = []
        self._window_bytes = window_bytes
        self._names = {id(each): name for name, each in self.parameters.items()}
        self._folder = RunFolder.create(folder)
        self._file = ExtentFile(self._folder, slab_bytes=1 << 20)
        ledger = Ledger()
        homes = Homes(self._file, ledger)
        transfers = Transfers(self._file, ledger, calls=calls, io=io)
        self.machine = Machine(homes, transfers, ledger, make_executor)
        for tier in (Tier.HOST, Tier.NVME):
            moving = [
                (name, each) for name, each in self.parameters.items() if placement(name) is tier
            ]
            homes.adopt(moving, tier, self.machine.transfers)
        self.takeover = Takeover(self)

    @property
    def early_bytes(self) -> int:
        return 0

    def name_of(self, parameter: Tensor) -> str | None:
        return self._names.get(id(parameter))

    def elsewhere(self, tensor: Tensor) -> bool:
        del tensor
        return False

    def tier_of(self, value: str) -> Tier:
        return self.placement(value)

    def expect_states(self, states: Iterable[str]) -> None:
        del states

    def overflow_tier(self) -> Tier:
        return Tier.NVME

    def target(self) -> Target:
        if self._window_bytes is None:
            return Target()
        reserved_bytes = self.machine.transfers.buffer_bytes
        return Target(
            device_budget=reserved_bytes + self._window_bytes, reserved_bytes=reserved_bytes
        )

    def plan(self, schedule: Schedule, target: Target) -> Schedule:
        self.plans.append(run_within_budget(PIPELINE, schedule, target).schedule)
        return self.plans[-1]

    def give_gradients(self, gradients: Iterable[Tensor | None]) -> None:
        """Let every parameter have a gradient at the home that the placement gives it."""
        for (name, parameter), gradient in zip(self.parameters.items(), gradients, strict=True):
            parameter.grad = None
            if gradient is not None:
                label = f"{name}:grad"
                home = self.machine.homes.fresh(
                    label,
                    self.placement(label),
                    parameter.dtype,
                    parameter.shape,
                    parameter.stride(),
                )
                parameter.grad = home.copy_(gradient)

    def tiers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tier]:
        """Return where each of ``tensors`` rests."""
        places = {name: self.machine.homes.find(each) for name, each in tensors.items()}
        return {name: place.home.tier if place else Tier.DEVICE for name, place in places.items()}

    def close(self) -> None:
        self.takeover.close()
        self.machine.close()
        self._file.close()
        self._folder.close()


@contextmanager
def session(
    folder: Path, parameters: Mapping[str, Parameter], placement: Placement, **options: object
) -> Generator[SmallSession]:
    made = SmallSession(folder, parameters, placement, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, Parameter]:
    """Return parameters of awkward sizes and strides, the same at each call."""
    random = torch.Generator().manual_seed(7)

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(dtype)

    tensors = {
        "embed.weight": made(65, 300),
        "norm.bias": made(7),
        "turned.weight": made(65, 130).t(),
        "scale": made(1).reshape(()),
        "conv.weight": made(6, 5, 3, 3).contiguous(memory_format=torch.channels_last),
        "long": made(40_001),
        "single": made(1),
    }
    return {name: Parameter(tensor) for name, tensor in tensors.items()}


@torch.no_grad()
def gradients(like: Iterable[Tensor], iteration: int) -> list[Tensor]:
    """Return one gradient for each of ``like``, the same for the same iteration."""
    random = torch.Generator().manual_seed(100 + iteration)
    return [
        torch.empty_like(each).copy_(torch.randn(each.shape, generator=random)) for each in like
    ]
