"""With checksums training has the same bits, and bytes that a disk has altered are refused."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.e2e.test_tight_budgets import budgeted, model, trained
from tests.runtime.conftest import USABLE
from zcompile.backend import Backend
from zcompile.ir import PAGE_BYTES
from zcompile.runtime.errors import StorageError
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.native import NATIVE_VARIABLE
from zcompile.session import Session

AWAY = {"parameters": "nvme", "gradients": "nvme", "optimizer": "nvme"}
X = torch.linspace(-1, 1, 32).reshape(4, 8)


def checked(ours: nn.Module, backend: Backend, folder: Path, **options: object) -> Any:
    options = {"device_budget": "4MiB", "place": AWAY, "checksums": True, **options}
    return budgeted(ours, backend, nvme_dir=folder, **options)


@pytest.mark.parametrize("io", [each for each in USABLE if each is not FileIO.BUFFERED])
@pytest.mark.parametrize("early", [False, True])
def test_the_bits_are_those_without(io: FileIO, early: bool, swap_dir: Path) -> None:
    plain, ours = model(), model()
    call = checked(ours, Backend(), swap_dir, io=io.value, early_update=early)
    for new, old in zip(trained(ours, call), trained(plain, plain), strict=True):
        assert torch.equal(new, old)


def damage(session: Session, tensor: Tensor) -> tuple[str, int]:
    """Flip a bit of where ``tensor`` rests, on the disk; return the file and the page's offset."""
    place = session.machine.homes.find(tensor)
    assert place is not None
    lease = place.home.lease
    assert lease is not None
    piece = next(lease.pieces())
    file = lease.file.files[piece.file]
    assert file.direct_fd is not None
    page = mmap.mmap(-1, PAGE_BYTES)
    os.preadv(file.direct_fd, [page], piece.offset)
    page[9] ^= 64
    os.pwritev(file.direct_fd, [page], piece.offset)
    return str(file.path), piece.offset


def iteration(call: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    call(X).square().mean().backward()
    optimizer.step()


Victim = Callable[[nn.Parameter, torch.optim.Optimizer], Tensor]

VICTIMS: dict[str, Victim] = {
    "2.weight": lambda weight, _: weight,
    "2.weight:exp_avg_sq": lambda weight, optimizer: optimizer.state[weight]["exp_avg_sq"],
}


@pytest.mark.parametrize("way", ["auto", "threads", "python", "absent"])
@pytest.mark.parametrize("victim", VICTIMS)
def test_what_a_disk_has_altered_is_refused_before_it_is_used(
    victim: str, way: str, swap_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "absent":
        monkeypatch.setenv(NATIVE_VARIABLE, "0")
    ours, backend = model(), Backend()
    call = checked(ours, backend, swap_dir, io="auto" if way == "absent" else way)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-2)
    for _ in range(3):
        iteration(call, optimizer)
    (session,) = backend.sessions(ours)
    weight = ours.get_parameter("2.weight")
    path, offset = damage(session, VICTIMS[victim](weight, optimizer))
    with pytest.raises(StorageError, match="EBADMSG") as caught:
        iteration(call, optimizer)
    error = caught.value
    assert (error.errno, error.filename, error.offset) == (errno.EBADMSG, path, offset)
    assert error.label.startswith(victim)


def test_code_beside_the_graphs_is_no_alarm(swap_dir: Path) -> None:
    def loop(module: nn.Module, call: Any) -> list[Tensor]:
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        for turn in range(4):
            optimizer.zero_grad()
            call(X).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            for each in module.parameters():
                assert each.grad is not None
                each.grad.data.mul_(0.5)
            optimizer.step()
            with torch.no_grad():
                for each in module.parameters():
                    each.data.mul_(1 - 0.01 * turn)
                    each.detach().numpy()[..., 0] += 0.25
            state = {name: each.clone() for name, each in module.state_dict().items()}
            module.load_state_dict(state)
        return [each.detach().clone() for each in module.parameters()]

    plain, ours = model(), model()
    call = checked(ours, Backend(), swap_dir)
    for new, old in zip(loop(ours, call), loop(plain, plain), strict=True):
        assert torch.equal(new, old)


def test_a_folder_where_nobody_can_tell_is_refused(
    swap_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)
    ours = model()
    before = [each.detach().clone() for each in ours.parameters()]
    with pytest.raises(ValueError, match=r"checksums=True: .*page cache.*or leave checksums out"):
        checked(ours, Backend(), swap_dir)(X)
    assert all(torch.equal(*pair) for pair in zip(before, ours.parameters(), strict=True))
    assert list(swap_dir.iterdir()) == []
