"""Finding who else holds the memory of a tensor."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor, nn

from zcompile.runtime.sharers import outlive, tensors_within


def stretch_of(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def is_in(tensor: Tensor, tensors: list[Tensor]) -> bool:
    return any(each is tensor for each in tensors)


def test_all_tensors_over_a_storage_are_found() -> None:
    weight, other = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(8, 8))
    row, bytes_of, copy = weight.detach()[7], weight.detach().view(torch.uint8), weight.clone()
    found = tensors_within(dict([stretch_of(other), stretch_of(weight)]))
    assert list(found) == [other.data_ptr(), weight.data_ptr()]
    of_weight = found[weight.data_ptr()]
    assert all(stretch_of(each) == stretch_of(weight) for each in of_weight)
    assert all(is_in(each, of_weight) for each in (weight, row, bytes_of))
    assert is_in(other, found[other.data_ptr()])
    assert not is_in(copy, of_weight)


def test_what_has_no_plain_memory_is_passed_over() -> None:
    strange = [torch.empty(3, device="meta"), torch.eye(3).to_sparse(), torch.empty(0)]
    weight = torch.randn(3)
    assert len(tensors_within(dict([stretch_of(weight)]))[weight.data_ptr()]) == 1
    assert strange


def test_memory_that_was_shown_to_numpy_is_kept_until_its_tensor_dies() -> None:
    shown, plain = torch.ones(4), torch.ones(4)
    array = shown.numpy()
    outlive(plain)
    assert weakref.getweakrefs(plain) == []
    (sharers,) = tensors_within(dict([stretch_of(shown)])).values()
    (held,) = (each for each in sharers if each is not shown)  # by the array
    gone = weakref.ref(held)
    outlive(held)
    for each in (shown, held):
        each.data = torch.zeros(4)
    del sharers, each, held
    assert array.tolist() == [1.0] * 4
    assert gone() is not None
    del array
    gc.collect()
    assert gone() is None


def test_what_was_set_aside_from_the_collector_is_found() -> None:
    weight = torch.randn(8, 8)
    row = weight[7]
    gc.collect()
    gc.freeze()
    try:
        assert gc.get_freeze_count() > 0
        (found,) = tensors_within(dict([stretch_of(weight)])).values()
        assert is_in(weight, found)
        assert is_in(row, found)
    finally:
        gc.unfreeze()
