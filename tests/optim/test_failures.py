"""A step that fails leaves everything on nvme as it was, and the next one works."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adamax, AdamW, Optimizer

from tests.optim.small_session import (
    Placement,
    SmallSession,
    all_on,
    gradients,
    parameters,
    session,
)
from tests.optim.twins import Make, Twins, bits
from zcompile.ir import Tier
from zcompile.runtime import shadows
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile, Lease
from zcompile.runtime.syscalls import SystemCalls

MAKES: dict[str, Make] = {
    "adamw": partial(AdamW, lr=1e-2),
    "sgd": partial(SGD, lr=1e-2, momentum=0.9),
}


class FailingCalls(SystemCalls):
    """Fails at a read or write of its choice; ``None`` for never."""

    def __init__(self) -> None:
        self.reads_left: int | None = None
        self.writes_left: int | None = None

    def read(self, fd: int, address: int, nbytes: int, offset: int) -> int:
        if self.reads_left is not None:
            self.reads_left -= 1
            if self.reads_left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(fd, address, nbytes, offset)

    def write(self, fd: int, address: int, nbytes: int, offset: int) -> int:
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write(fd, address, nbytes, offset)


def picture(own: SmallSession, optimizer: Optimizer) -> dict[str, Any]:
    """Return every bit that a step may change."""
    found: dict[str, Any] = {}
    for name, param in own.parameters.items():
        found[name] = bits(param).clone()
        found[f"{name}:grad"] = None if param.grad is None else bits(param.grad).clone()
        found[f"{name}:states"] = list(optimizer.state.get(param, {}))
        for kind, value in optimizer.state.get(param, {}).items():
            found[f"{name}:{kind}"] = bits(value).clone()
    return found


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name, value in one.items() if not same(value, other[name])}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("reads", "writes"), [(0, None), (25, None), (None, 0), (None, 12)])
def test_nothing_changes(
    tmp_path: Path, make: Make, first: bool, reads: int | None, writes: int | None
) -> None:
    calls = FailingCalls()
    with session(tmp_path, parameters(), all_on(Tier.NVME), calls=calls) as own:
        twins = Twins.of(own, parameters(), make)
        if not first:
            twins.step(0)
        own.give_gradients(gradients(own.parameters.values(), 1))
        before = picture(own, twins.ours)
        calls.reads_left, calls.writes_left = reads, writes
        with pytest.raises(StorageError, match="EIO") as caught:
            twins.ours.step()
        assert not hasattr(caught.value, "__notes__")
        assert differing(before, picture(own, twins.ours)) == set()
        calls.reads_left = calls.writes_left = None
        twins.step(1)


def test_a_full_disk_is_found_before_anything_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, parameters(), all_on(Tier.NVME)) as own:
        twins = Twins.of(own, parameters(), MAKES["adamw"])
        twins.step(0)
        own.give_gradients(gradients(own.parameters.values(), 1))
        before = picture(own, twins.ours)
        moved = own.machine.ledger.snapshot().moved_bytes
        lease_row = ExtentFile.lease_row
        rows: list[Sequence[tuple[int, str]]] = []

        def full(self: ExtentFile, wanted: Sequence[tuple[int, str]]) -> list[Lease]:
            rows.append(wanted)
            if len(rows) > 3:
                nbytes, label = wanted[0]
                raise StorageError.during(
                    "allocate",
                    errno.ENOSPC,
                    file=self.files[0].path,
                    offset=0,
                    nbytes=nbytes,
                    label=label,
                )
            return lease_row(self, wanted)

        with monkeypatch.context() as patch:
            patch.setattr(shadows, "ROW_BYTES", 100_000)
            patch.setattr(ExtentFile, "lease_row", full)
            with pytest.raises(StorageError, match="ENOSPC"):
                twins.ours.step()
        assert own.machine.ledger.snapshot().moved_bytes == moved
        assert differing(before, picture(own, twins.ours)) == set()
        twins.step(1)


def test_a_disk_that_is_full_after_a_step_does_not_undo_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(tmp_path, parameters(), all_on(Tier.NVME)) as own:
        twins = Twins.of(own, parameters(), partial(Adamax, lr=1e-2))
        lease = ExtentFile.lease

        def full(self: ExtentFile, nbytes: int, label: str) -> Lease:
            if ":exp_" in label:
                raise StorageError.during(
                    "allocate",
                    errno.ENOSPC,
                    file=self.files[0].path,
                    offset=0,
                    nbytes=nbytes,
                    label=label,
                )
            return lease(self, nbytes, label)

        with monkeypatch.context() as patch:
            patch.setattr(ExtentFile, "lease", full)
            with pytest.warns(UserWarning, match=r"the step is done.*exp_.*ENOSPC"):
                twins.step(0)
            before = picture(own, twins.ours)
            with pytest.raises(StorageError, match="ENOSPC"):  # before the next one begins
                twins.ours.step()
            assert differing(before, picture(own, twins.ours)) == set()
        with pytest.warns(UserWarning, match="until they were moved to their homes"):
            twins.step(1)
        states = [twins.ours.state[each]["exp_avg"] for each in own.parameters.values()]
        assert all(own.machine.homes.find(each) for each in states if each.dim() and each.nbytes)


def states_away(value: str) -> Tier:
    """Leave most on the device, and let two parameters have something on nvme."""
    if value.startswith("norm"):
        return Tier.NVME
    return Tier.NVME if value == "long:exp_avg" else Tier.DEVICE


def test_of_a_mixture_only_what_is_named_has_changed(tmp_path: Path) -> None:
    calls = FailingCalls()
    placement: Placement = states_away
    with session(tmp_path, parameters(), placement, calls=calls) as own:
        twins = Twins.of(own, parameters(), MAKES["adamw"])
        twins.step(0)
        own.give_gradients(gradients(own.parameters.values(), 1))
        before = picture(own, twins.ours)
        calls.writes_left = 4
        with pytest.raises(StorageError) as caught:
            twins.ours.step()
        changed = differing(before, picture(own, twins.ours))
        assert changed == {"long", "long:exp_avg_sq"}
        (note,) = caught.value.__notes__
        assert note.endswith("are long, long:exp_avg_sq")
