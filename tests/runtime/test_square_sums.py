"""Sums of squares: one order, with the library and without."""

from __future__ import annotations

import pytest
import torch

from zcompile.runtime.square_sums import CHUNK_NUMEL, can_sum, in_numpy, square_sum

SIZES = (1, 15, 16, 17, 1000, CHUNK_NUMEL - 1, CHUNK_NUMEL, 3 * CHUNK_NUMEL + 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("numel", SIZES)
def test_both_give_the_same_bits(numel: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(numel)
    flat = (torch.randn(numel, generator=random) * torch.randn(numel, generator=random)).to(dtype)
    assert square_sum(flat) == in_numpy(flat)
    assert square_sum(flat) == pytest.approx(float(flat.double().square().sum()), rel=1e-12)


def test_the_order_is_that_of_memory() -> None:
    turned = torch.randn(300, 200).t()
    assert square_sum(turned) == square_sum(turned.t())
    assert square_sum(torch.zeros(0, 3)) == 0.0
    assert square_sum(torch.tensor(3.0)) == 9.0


def test_what_is_not_finite_stays_so() -> None:
    for value in (float("inf"), float("nan")):
        flat = torch.ones(100)
        flat[50] = value
        assert not torch.tensor([square_sum(flat), in_numpy(flat)]).isfinite().any()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3, dtype=torch.float64),
        torch.ones(3, dtype=torch.complex64),
        torch.ones(1).expand(3),
        torch.ones(6)[::2],
        torch.eye(3).to_sparse(),
        torch.ones(3, device="meta"),
        torch.ones(1, dtype=torch.complex64).conj().imag,
    ],
    ids=["double", "complex", "expanded", "strided", "sparse", "meta", "negative"],
)
def test_others_are_refused(tensor: torch.Tensor) -> None:
    assert not can_sum(tensor)
