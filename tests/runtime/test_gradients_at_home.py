"""Autograd takes gradients over homes as they are, accumulates in place, and lets go of them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from zcompile.ir import Tier
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.homes import Homes

AWAY = [Tier.NVME, Tier.HOST]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 64)
        self.down = nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return hidden


def send_home(homes: Homes, tier: Tier, addresses: list[int]) -> Callable[..., Any]:
    """Return a backend whose backward returns every gradient of a parameter over a fresh home."""

    def compile_backward(graph: Callable[..., Any], _inputs: object) -> Callable[..., Any]:
        def run(args: list[Any]) -> list[Any]:
            results = list(graph(*args))
            args.clear()
            for i, gradient in enumerate(results):
                if isinstance(gradient, Tensor) and gradient.shape != (8, 16):
                    home = homes.fresh(
                        "g", tier, gradient.dtype, gradient.shape, gradient.stride()
                    ).copy_(gradient)
                    addresses.append(home.data_ptr())
                    results[i] = home
                    del home
            return results

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def keep(graph: Callable[..., Any], _inputs: object) -> Callable[..., Any]:
        return graph

    backend: Callable[..., Any] = aot_autograd(fw_compiler=keep, bw_compiler=compile_backward)
    return backend


class GradientAtHome(torch.autograd.Function):
    """The identity, whose gradient comes over a fresh home."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, homes: Homes) -> Tensor:
        ctx.homes = homes
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        homes: Homes = ctx.homes
        home = homes.fresh("g", Tier.NVME, gradient.dtype, gradient.shape, gradient.stride())
        return home.copy_(gradient), None


def note(fired: list[int], number: int, _tensor: Tensor) -> None:
    fired.append(number)


def backward(weight: Tensor, homes: Homes) -> Tensor:
    (GradientAtHome.apply(weight, homes) * 2).sum().backward()  # type: ignore[no-untyped-call]  # torch's
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("tier", AWAY)
def test_compiled_gradients_are_adopted_and_accumulated_in_place(
    homes: Homes, extent_file: ExtentFile, tier: Tier
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), Block())
    plain = copy.deepcopy(model)
    addresses: list[int] = []
    compiled = torch.compile(model, backend=send_home(homes, tier, addresses))
    x = torch.randn(8, 16)
    for iteration in range(3):
        compiled(x).square().sum().backward()
        plain(x).square().sum().backward()
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            assert ours.grad.data_ptr() in addresses[:18], f"iteration {iteration}"
            assert torch.equal(ours.grad, theirs.grad)
    assert len(addresses) == 3 * 18
    held = sum(p.numel() * 4 for p in model.parameters()) if tier is Tier.NVME else 0
    assert extent_file.leased_bytes >= held
    model.zero_grad()
    gc.collect()
    assert extent_file.leased_bytes == 0


def test_a_gradient_is_the_mapping_itself(homes: Homes) -> None:
    weight = nn.Parameter(torch.randn(300, 5))
    gradient = backward(weight, homes)
    place = homes.find(gradient)
    assert place is not None
    assert place.home.tier is Tier.NVME
    assert gradient.eq(2.0).all()
    again = backward(weight, homes)
    assert again.data_ptr() == place.home.address
    assert again.eq(4.0).all()


def test_gradients_of_two_graphs_are_summed_at_home(homes: Homes) -> None:
    weight = nn.Parameter(torch.randn(300, 5))
    first, second = (GradientAtHome.apply(weight, homes) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
    (first * 2 + second * 3).sum().backward()
    assert weight.grad is not None
    assert homes.find(weight.grad) is not None
    assert weight.grad.eq(5.0).all()


def test_each_backward_has_an_extent_of_its_own_while_the_user_holds_gradients(
    homes: Homes, extent_file: ExtentFile
) -> None:
    weight = nn.Parameter(torch.randn(4096))
    kept: list[Tensor] = []
    for i in range(1, 4):
        kept.append(backward(weight, homes).mul_(i))
        weight.grad = None
        assert extent_file.leased_bytes == i * 4096 * 4
    assert [gradient.mean().item() for gradient in kept] == [2.0, 4.0, 6.0]
    slice_of_the_first = kept[0][7:9]
    kept.clear()
    assert extent_file.leased_bytes == 4096 * 4
    assert slice_of_the_first.tolist() == [2.0, 2.0]
    del slice_of_the_first
    assert extent_file.leased_bytes == 0


def test_extents_of_dropped_gradients_are_recycled(homes: Homes, extent_file: ExtentFile) -> None:
    weight = nn.Parameter(torch.randn(1 << 16))
    backward(weight, homes)
    size_bytes = extent_file.size_bytes
    for _ in range(20):
        weight.grad = None
        backward(weight, homes)
    assert extent_file.size_bytes == size_bytes


def test_hooks_clipping_and_steps_see_an_ordinary_gradient(homes: Homes) -> None:
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(50, 3))
    theirs = nn.Parameter(ours.detach().clone())
    fired: list[int] = []
    ours.register_hook(partial(note, fired, 1))
    after = partial(note, fired, 2)
    ours.register_post_accumulate_grad_hook(after)
    backward(ours, homes)
    (theirs.clone() * 2).sum().backward()
    assert fired == [1, 2]
    norms = [nn.utils.clip_grad_norm_([p], 1.0) for p in (ours, theirs)]
    assert torch.equal(*norms)
    for parameter in (ours, theirs):
        torch.optim.AdamW([parameter]).step()
    assert torch.equal(ours, theirs)
