"""Moving living tensors between tiers: bytes, ties, identity, and what has to stay."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from zcompile.ir import Tier
from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.homes import Homes, LeftAlone
from zcompile.runtime.ledger import Channel, Ledger
from zcompile.runtime.procfs import disk_traffic, memory_use, resident_bytes_of
from zcompile.runtime.transfers import Copies

STRIPED = True

AWAY = [Tier.NVME, Tier.HOST]


def tier_of(homes: Homes, tensor: Tensor) -> Tier:
    place = homes.find(tensor)
    return Tier.DEVICE if place is None else place.home.tier


def note(fired: list[str], name: str, _tensor: Tensor) -> None:
    fired.append(name)


def transposed(dtype: torch.dtype) -> Tensor:
    return torch.randn(6, 4).to(dtype).t()


def sliced(dtype: torch.dtype) -> Tensor:
    return torch.randn(10, 9).to(dtype)[2:8, 1::2]


def scalar(dtype: torch.dtype) -> Tensor:
    return torch.randn(()).to(dtype)


def large(dtype: torch.dtype) -> Tensor:
    return torch.randn(700, 1001).to(dtype)


DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.bool,
    torch.int64,
    torch.complex64,
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("tier", AWAY)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", [transposed, sliced, scalar, large])
def test_every_kind_of_tensor_moves_there_and_back(
    homes: Homes,
    copies: Copies,
    extent_file: ExtentFile,
    make: Callable[[torch.dtype], Tensor],
    dtype: torch.dtype,
    tier: Tier,
) -> None:
    tensor = make(dtype)
    layout = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
    before = tensor.clone()
    for there in (tier, Tier.DEVICE):
        assert homes.adopt([("w", tensor)], there, copies) == ()
        assert tier_of(homes, tensor) is there
        assert layout == (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
        assert torch.equal(tensor.to(torch.complex128), before.to(torch.complex128))
    assert extent_file.leased_bytes == 0


@pytest.mark.parametrize(("start", "end"), list(product(Tier, Tier)))
def test_between_any_two_tiers(homes: Homes, copies: Copies, start: Tier, end: Tier) -> None:
    tensor = torch.arange(5000)
    homes.adopt([("w", tensor)], start, copies)
    homes.adopt([("w", tensor)], end, copies)
    assert tier_of(homes, tensor) is end
    assert torch.equal(tensor, torch.arange(5000))


@pytest.mark.parametrize("tier", AWAY)
def test_adopting_again_touches_nothing(
    homes: Homes, copies: Copies, ledger: Ledger, tier: Tier
) -> None:
    model = nn.Linear(30, 40)
    homes.adopt(list(model.named_parameters()), tier, copies)
    addresses = [p.data_ptr() for p in model.parameters()]
    moved = ledger.snapshot().moved_bytes
    assert homes.adopt(list(model.named_parameters()), tier, copies) == ()
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert ledger.snapshot().moved_bytes == moved


def test_a_parameter_stays_the_object_it_was(homes: Homes, copies: Copies) -> None:
    model = nn.Linear(30, 40)
    weight = model.weight
    with torch.no_grad():
        weight.add_(1.0)
    fired: list[str] = []
    weight.register_hook(partial(note, fired, "hook"))
    after = partial(note, fired, "after")
    weight.register_post_accumulate_grad_hook(after)
    model(torch.ones(30)).sum().backward()
    gradient, version = weight.grad, weight._version
    homes.adopt(list(model.named_parameters()), Tier.NVME, copies)
    assert model.weight is weight
    assert isinstance(weight, nn.Parameter)
    assert weight.is_leaf
    assert weight.requires_grad
    assert weight.grad is gradient
    assert weight._version == version
    model(torch.ones(30)).sum().backward()
    assert fired == ["hook", "after"] * 2
    with torch.no_grad():
        weight.mul_(2.0)
    assert weight._version == version + 1


def test_a_graph_in_flight_keeps_its_numbers(homes: Homes, copies: Copies) -> None:
    x = torch.randn(5, 30)
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 3))
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    loss = model(x).sum()
    homes.adopt(list(model.named_parameters()), Tier.NVME, copies)
    loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("tier", list(Tier))
def test_a_parameter_adopted_in_any_mode_is_trained_later(
    homes: Homes, copies: Copies, mode: Callable[[], AbstractContextManager[None]], tier: Tier
) -> None:
    model = nn.Linear(3, 4)
    homes.adopt(list(model.named_parameters()), Tier.HOST, copies)
    with mode():
        homes.adopt(list(model.named_parameters()), tier, copies)
        model(torch.ones(3))
    model(torch.ones(3)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert not model.weight.is_inference()
    assert tier_of(homes, model.weight) is tier


@pytest.mark.parametrize("there", [(Tier.NVME,), (Tier.HOST,), (Tier.NVME, Tier.HOST, Tier.DEVICE)])
def test_what_shares_a_storage_still_does(
    homes: Homes, copies: Copies, there: tuple[Tier, ...]
) -> None:
    flat = torch.arange(100, dtype=torch.float32)
    tied = [
        nn.Parameter(flat[10:70]),
        nn.Parameter(flat[30:90].view(6, 10).t()),
        nn.Parameter(flat),
    ]
    expected = [parameter.detach().clone() for parameter in tied]
    for tier in there:
        homes.adopt([(f"p{i}", parameter) for i, parameter in enumerate(tied)], tier, copies)
        assert len({parameter.untyped_storage().data_ptr() for parameter in tied}) == 1
    assert all(map(torch.equal, tied, expected))
    with torch.no_grad():
        tied[2][40] = -1.0
    assert tied[0][30].item() == tied[1][0, 1].item() == -1.0
    places = [homes.find(parameter) for parameter in tied]
    if there[-1] is not Tier.DEVICE:
        assert [place and place.byte_offset for place in places] == [40, 120, 0]


def test_views_of_other_dtypes_stay_tied(homes: Homes, copies: Copies) -> None:
    flat = torch.arange(11, dtype=torch.uint8)
    wide = flat[4:].view(torch.uint8)[:4].view(torch.int32)
    homes.adopt([("flat", flat), ("wide", wide)], Tier.NVME, copies)
    wide.fill_(-1)
    assert flat.tolist() == [0, 1, 2, 3, 255, 255, 255, 255, 8, 9, 10]


def test_one_parameter_under_two_names_moves_once(
    homes: Homes, copies: Copies, extent_file: ExtentFile
) -> None:
    weight = nn.Parameter(torch.randn(1024))
    homes.adopt([("embed", weight), ("head", weight)], Tier.NVME, copies)
    assert extent_file.leased_bytes == 4096
    place = homes.find(weight)
    assert place is not None
    assert place.home.label == "embed"


def test_buffers_and_optimizer_states_move_too(homes: Homes, copies: Copies) -> None:
    model = nn.BatchNorm1d(8)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    states = [
        (f"state.{i}.{name}", state)
        for i, parameter in enumerate(model.parameters())
        for name, state in optimizer.state[parameter].items()
    ]
    tensors = [*model.named_buffers(), *states]
    before = [tensor.clone() for _, tensor in tensors]
    assert homes.adopt(tensors, Tier.NVME, copies) == ()
    assert all(tier_of(homes, tensor) is Tier.NVME for _, tensor in tensors)
    assert all(map(torch.equal, [tensor for _, tensor in tensors], before))
    optimizer.step()
    assert states[0][1].item() == 2.0


def test_tensors_without_elements_are_no_trouble(homes: Homes, copies: Copies) -> None:
    empty = nn.Parameter(torch.empty(0, 3))
    nothing_of_much = torch.randn(10)[5:5]
    assert homes.adopt([("e", empty), ("n", nothing_of_much)], Tier.NVME, copies) == ()
    assert empty.shape == (0, 3)


def test_what_has_to_stay_is_said(homes: Homes, copies: Copies) -> None:
    expanded = torch.randn(1, 3).expand(4, 3)
    with torch.inference_mode():
        inference = torch.ones(3)
    leaf = torch.randn(3, requires_grad=True)
    base = torch.randn(3)
    shared = torch.randn(3)
    shared.share_memory_()
    tensors: dict[str, torch.Tensor] = {
        "expanded": expanded,
        "meta": torch.empty(3, device="meta"),
        "sparse": torch.eye(3).to_sparse(),
        "lazy": torch.randn(3, dtype=torch.complex64).conj(),
        "inference": inference,
        "shared": shared,
        "result": leaf * 2,
        "uninitialized": nn.UninitializedParameter(),
        "base": base,
        "seven": base.expand(7, 3),
    }
    addresses = {name: t.data_ptr() for name, t in tensors.items() if name in ("base", "expanded")}
    left = homes.adopt(list(tensors.items()), Tier.NVME, copies)
    reasons = {each.label: each.reason for each in left}
    assert reasons == {
        "expanded": "is expanded: several of its elements are one",
        "meta": "is on meta",
        "sparse": "has no plain strided storage",
        "lazy": "is conjugated or negated lazily",
        "inference": "was made in inference mode",
        "shared": "is shared with other processes",
        "result": "is the result of a recorded operation",
        "uninitialized": "is a UninitializedParameter, which has no storage of its own",
        "seven": "is expanded: several of its elements are one",
        "base": "shares its storage with seven, which is expanded: several of its elements are one",
    }
    assert all(tensors[name].data_ptr() == address for name, address in addresses.items())


def test_bytes_go_to_the_file_directly_and_leave_memory(
    homes: Homes, copies: Copies, ledger: Ledger, extent_file: ExtentFile
) -> None:
    nbytes = 64 << 20
    tensors = [(f"w{i}", torch.full((nbytes // 16,), float(i))) for i in range(4)]
    before, traffic = memory_use(), disk_traffic()
    homes.adopt(tensors, Tier.NVME, copies)
    gc.collect()
    after = memory_use()
    assert before.anonymous_bytes - after.anonymous_bytes > nbytes - (6 << 20)
    assert after.file_bytes - before.file_bytes < 2 << 20
    assert resident_bytes_of(extent_file.files[0].path) == 0
    written = disk_traffic().since(traffic).write_bytes
    assert nbytes <= written <= nbytes * 1.05 + (2 << 20)
    assert ledger.snapshot().moved_bytes[Channel.NVME_WRITE] == nbytes
    assert [tensor.mean().item() for _, tensor in tensors] == [0.0, 1.0, 2.0, 3.0]


def test_freed_memory_goes_back_to_the_system(
    homes: Homes, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims: list[bool] = []
    monkeypatch.setattr("zcompile.runtime.libc.return_freed_memory", lambda: trims.append(True))
    tensor = torch.randn(100)
    for tier, count in [(Tier.NVME, 1), (Tier.NVME, 1), (Tier.HOST, 1), (Tier.DEVICE, 1)]:
        homes.adopt([("w", tensor)], tier, copies)
        assert len(trims) == count, "only leaving ordinary memory frees any"


def test_a_full_disk_leaves_everything_as_it_was(
    homes: Homes, copies: Copies, extent_file: ExtentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [(f"w{i}", torch.full((1 << 17,), float(i))) for i in range(4)]
    addresses = [tensor.data_ptr() for _, tensor in tensors]
    room = [1]

    def nearly_full(_fd: int, _offset: int, _nbytes: int) -> None:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room.pop()
        os.ftruncate(_fd, _offset + _nbytes)

    monkeypatch.setattr(os, "posix_fallocate", nearly_full)
    with pytest.raises(StorageError, match=r"allocate w[02]: .*ENOSPC"):
        homes.adopt(tensors, Tier.NVME, copies)
    assert [tensor.data_ptr() for _, tensor in tensors] == addresses
    assert extent_file.leased_bytes == 0


def test_left_alone_is_data() -> None:
    assert LeftAlone("w", "is on meta") == LeftAlone("w", "is on meta")
