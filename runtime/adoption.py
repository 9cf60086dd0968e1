"""Moving the storages of living tensors to another tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from zcompile.ir import Tier
from zcompile.runtime import libc
from zcompile.runtime.buffer import Buffer, tensor_over
from zcompile.runtime.extents import Lease
from zcompile.runtime.home import Home, Place
from zcompile.runtime.pending import Pending
from zcompile.runtime.transfers import Copies


class HomeMaker(Protocol):
    """What adopting needs of ``Homes``."""

    def find(self, tensor: Tensor) -> Place | None: ...
    def lease(self, nbytes: int, label: str) -> Lease: ...
    def make(
        self, label: str, tier: Tier, nbytes: int, lease: Lease | None = None
    ) -> tuple[Home, Buffer]: ...
    def register(self, homes: Sequence[Home]) -> None: ...


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A tensor that stays where it is, and why."""

    label: str
    reason: str


Member = tuple[str, Tensor]
"""A tensor and what to call it."""


@dataclass(slots=True)
class _Storage:
    """One storage and those of the given tensors that lie in it; ``home`` is ``None`` for RAM."""

    label: str
    address: int
    nbytes: int
    home: Home | None
    members: list[Member] = field(default_factory=list[Member])

    @property
    def tier(self) -> Tier:
        return Tier.DEVICE if self.home is None else self.home.tier


@dataclass(slots=True)
class _Move:
    """A storage on its way; ``bytes`` is its new memory, ``home`` the record of that."""

    storage: _Storage
    bytes: Tensor
    home: Home | None

    def start(self, copies: Copies) -> Pending:
        """Start copying.  Both memories are kept until it is over, whatever becomes of us."""
        source, home = self.storage, self.home
        keep = ([member.detach() for _, member in source.members], self.bytes)
        target = self.bytes.data_ptr()
        if home is not None and home.lease is not None:
            return copies.write(
                home.lease, 0, source.address, source.nbytes, source.label, keep=keep
            )
        if source.home is not None and source.home.lease is not None:
            return copies.read(source.home.lease, 0, target, source.nbytes, source.label, keep=keep)
        copy = copies.copy_in if home is None else copies.copy_out
        return copy(source.address, target, source.nbytes, keep=keep)

    def finish(self) -> None:
        """Point the tensors to the new memory."""
        for _, member in self.storage.members:
            size = member.dtype.itemsize
            offset = (member.data_ptr() - self.storage.address) // size
            whole = self.bytes[: self.storage.nbytes // size * size].view(member.dtype)
            member.data = whole.as_strided(member.shape, member.stride(), offset)


def adopt(
    homes: HomeMaker, tensors: Sequence[Member], tier: Tier, copies: Copies
) -> tuple[LeftAlone, ...]:
    """Move the storages of labelled tensors to ``tier``; return those that have to stay.

    The tensor objects remain, with their hooks, versions, strides and offsets; only their
    memory is another.  Tensors over one storage still share one afterwards, so whatever
    shares a storage must come in one call.  What rests on ``tier`` already is not touched.

    Space is taken for all before any is moved: ``StorageError`` for a full disk leaves
    every tensor as it was.  If a copy fails later, those moved so far stay moved.
    """
    storages, left = _storages(homes, tensors)
    moving = [storage for storage in storages if storage.tier is not tier]
    with torch.inference_mode(False):  # what is moved while evaluating is trained later
        _move_all(homes, moving, tier, copies)
    if any(storage.home is None for storage in moving):
        libc.return_freed_memory()
    return tuple(left)


def _move_all(homes: HomeMaker, moving: Sequence[_Storage], tier: Tier, copies: Copies) -> None:
    leases = _lease_all(homes, moving, tier)
    moves = [
        _prepare(homes, storage, tier, lease) for storage, lease in zip(moving, leases, strict=True)
    ]
    homes.register([move.home for move in moves if move.home is not None])
    in_flight = [(move, move.start(copies)) for move in moves]
    for move, pending in in_flight:
        pending.wait()
        move.finish()


def _storages(
    homes: HomeMaker, tensors: Iterable[Member]
) -> tuple[list[_Storage], list[LeftAlone]]:
    """Group the tensors by storage; leave out storages with a tensor that has to stay."""
    left: list[LeftAlone] = []
    storages: dict[int, _Storage] = {}
    staying: dict[int, LeftAlone] = {}
    for label, tensor in tensors:
        if reason := _opaque(tensor):
            left.append(LeftAlone(label, reason))
            continue
        if tensor.numel() == 0:
            continue
        found = _storage_of(homes, label, tensor)
        storage = storages.setdefault(found.address, found)
        if all(tensor is not known for _, known in storage.members):
            storage.members.append((label, tensor))
        if reason := _fixed(tensor):
            staying.setdefault(found.address, LeftAlone(label, reason))
    for address, cause in staying.items():
        left.append(cause)
        left += [
            LeftAlone(label, f"shares its storage with {cause.label}, which {cause.reason}")
            for label, _ in storages.pop(address).members
            if label != cause.label
        ]
    return list(storages.values()), left


def _opaque(tensor: Tensor) -> str | None:
    """Return why the tensor has no storage that could be looked at."""
    if tensor.device.type != "cpu":
        return f"is on {tensor.device}"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return "has no plain strided storage"
    if is_traceable_wrapper_subclass(cast(object, tensor)) or is_lazy(tensor):
        return f"is a {type(tensor).__name__}, which has no storage of its own"
    return None


def _fixed(tensor: Tensor) -> str | None:
    """Return why the memory of the tensor cannot be exchanged."""
    if any(
        step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        return "is expanded: several of its elements are one"
    if tensor.is_conj() or tensor.is_neg():
        return "is conjugated or negated lazily"
    if tensor.is_shared():
        return "is shared with other processes"
    if tensor.is_inference():
        return "was made in inference mode"
    if tensor.grad_fn is not None:
        return "is the result of a recorded operation"
    return None


def _storage_of(homes: HomeMaker, label: str, tensor: Tensor) -> _Storage:
    place = homes.find(tensor)
    if place is not None:
        return _Storage(label, place.home.address, place.home.nbytes, place.home)
    storage = tensor.untyped_storage()
    return _Storage(label, storage.data_ptr(), storage.nbytes(), None)


def _lease_all(homes: HomeMaker, moving: Sequence[_Storage], tier: Tier) -> list[Lease | None]:
    if tier is not Tier.NVME:
        return [None] * len(moving)
    return [homes.lease(storage.nbytes, storage.label) for storage in moving]


def _prepare(homes: HomeMaker, storage: _Storage, tier: Tier, lease: Lease | None) -> _Move:
    if tier is Tier.DEVICE:
        return _Move(storage, torch.empty(storage.nbytes, dtype=torch.uint8, device="cpu"), None)
    home, buffer = homes.make(storage.label, tier, storage.nbytes, lease)
    return _Move(storage, tensor_over(buffer, 0, torch.uint8, (storage.nbytes,), (1,)), home)
