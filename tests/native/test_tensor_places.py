"""Where tensors lie is read anew at each call, in one go, and says what torch says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import Parameter

from tests.native.optim_cases import State, item, made
from zcompile.runtime import tensor_places
from zcompile.runtime.native import Native
from zcompile.runtime.native_optim import Optimizers
from zcompile.runtime.optim_batch import Item, batch
from zcompile.runtime.optim_formulas import Adam
from zcompile.runtime.tensor_places import TYPES, ElementType, objects_of, places

ADAM = Adam(1.37e-2, weight_decay=0.013)
NUMEL = 600
DTYPES = (*TYPES, torch.float64, torch.bool, torch.int8)


def absent(name: str) -> None:
    """Stand in for a torch that does not describe its tensors."""
    del name


@pytest.fixture(params=["library", "methods"])
def way(request: pytest.FixtureRequest, native: Native, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of reading: what is tested with one must hold with the other."""
    del native
    if request.param == "methods":
        monkeypatch.setattr(tensor_places, "library_function", absent)
    else:
        assert tensor_places.library_function("zinf_tensors_read") is not None
    return str(request.param)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    start = draw(st.integers(0, 3))
    whole = torch.zeros([each + start for each in shape], dtype=draw(st.sampled_from(DTYPES)))
    part = whole[tuple(slice(start, None) for _ in shape)]
    if draw(st.booleans()):
        part = part.clone()
    return part.permute(draw(st.permutations(range(len(shape)))))


@given(st.lists(tensors(), min_size=1, max_size=5))
def test_places_are_those_that_torch_says(several: list[Tensor]) -> None:
    found = places(objects_of(several, len(several)))
    for at, tensor in enumerate(several):
        flat = tensor.is_contiguous()
        assert found.types[at] == TYPES.get(tensor.dtype, ElementType.NONE)
        assert found.numels[at] == (tensor.numel() if flat else -1)
        assert tensor.numel() == 0 or found.addresses[at] == (tensor.data_ptr() if flat else 0)


@pytest.mark.parametrize(
    "other",
    [
        torch.empty(3, device="meta"),
        torch.eye(3).to_sparse(),
        torch.zeros(3, dtype=torch.complex64),
    ],
)
def test_what_is_not_in_ordinary_memory_is_nowhere(other: Tensor, way: str) -> None:
    found = places(objects_of([torch.zeros(2), other], 2))
    assert found.numels[1] == -1 or found.types[1] == ElementType.NONE, way
    with pytest.raises(ValueError, match="on the cpu"):
        batch([Item(other, other)])


def by_data(tensor: Tensor) -> None:
    tensor.data = tensor.clone()


def by_set(tensor: Tensor) -> None:
    tensor.set_(tensor.clone().untyped_storage(), 0, tensor.shape, tensor.stride())


def by_resizing(tensor: Tensor) -> None:
    kept = tensor.clone()
    tensor.set_(torch.UntypedStorage(0), 0, (0,), (1,))
    tensor.resize_(kept.shape).copy_(kept)


def by_swapping(tensor: Tensor) -> None:
    torch.utils.swap_tensors(tensor, tensor.clone())


@pytest.mark.parametrize("move", [by_data, by_set, by_resizing, by_swapping])
@pytest.mark.parametrize("which", ["param", "grad", "state"])
def test_a_kept_batch_follows_tensors_that_move(
    move: Callable[[Tensor], None], which: str, native: Native, way: str
) -> None:
    optimizers = Optimizers(native)
    moved, stayed = made(NUMEL, 1), made(NUMEL, 1)
    kept = batch([item(ADAM, moved)])

    def step() -> None:
        assert optimizers.step(ADAM.formula(), kept)
        assert optimizers.step(ADAM.formula(), batch([item(ADAM, stayed)]))
        for ours, theirs in zip(moved.tensors(), stayed.tensors(), strict=True):
            assert same_bits(ours, theirs), way

    step()
    for _ in range(2):
        tensor = {"param": moved.param, "grad": moved.grad, "state": moved.states[1]}[which]
        left = tensor.detach()
        before, address = left.clone(), left.data_ptr()
        move(tensor)
        assert tensor.data_ptr() != address
        step()
        assert same_bits(left, before), "what a tensor has left is written to"


def shorter(tensor: Tensor) -> None:
    tensor.data = tensor[:-1]


def of_another_type(tensor: Tensor) -> None:
    tensor.data = tensor.view(torch.int32)


def of_half_the_type(tensor: Tensor) -> None:
    tensor.data = tensor.bfloat16()


def strided(tensor: Tensor) -> None:
    tensor.data = torch.zeros(2 * NUMEL)[::2]


def away(tensor: Tensor) -> None:
    torch.utils.swap_tensors(tensor, torch.empty(NUMEL, device="meta"))


@pytest.mark.parametrize("change", [shorter, of_another_type, of_half_the_type, strided, away])
def test_a_kept_batch_refuses_tensors_that_are_not_as_they_were(
    change: Callable[[Tensor], None], native: Native, way: str
) -> None:
    states = [made(NUMEL, seed) for seed in (1, 2)]
    kept = batch([item(ADAM, each) for each in states])
    before = states[0].clone()
    change(states[1].param)
    for call in (lambda: Optimizers(native).step(ADAM.formula(), kept), kept.read_again):
        with pytest.raises(ValueError, match="than when the batch was made: make a new one"):
            call()
    for ours, theirs in zip(states[0].tensors(), before.tensors(), strict=True):
        assert same_bits(ours, theirs), way


def test_parameters_of_a_module_are_read_as_tensors_are(native: Native, way: str) -> None:
    plain = made(NUMEL, 1)
    param = Parameter(plain.param.clone())
    as_parameter = item(ADAM, State(param, plain.grad, [each.clone() for each in plain.states]))
    assert Optimizers(native).step(ADAM.formula(), batch([as_parameter]))
    assert Optimizers(native).step(ADAM.formula(), batch([item(ADAM, plain)]))
    assert same_bits(param.detach(), plain.param), way


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
