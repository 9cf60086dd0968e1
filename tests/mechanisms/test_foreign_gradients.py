"""Gradients in memory that others hold: they stay there, are used as they are, and told of."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.nn.parallel import DistributedDataParallel

from tests.e2e.nets import WIDTH, loss_of, made
from tests.e2e.sides import copies
from tests.mechanisms.at_home import check_in_file, check_training, gradients

TOLD = "ignore:the gradient of .* stays in ordinary memory, outside the budget:UserWarning"


def two() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def test_views_of_a_buffer_of_the_user(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        parameters = list(model.parameters())
        flat, start = torch.zeros(sum(each.numel() for each in parameters)), 0
        for each in parameters:
            each.grad = flat.narrow(0, start, each.numel()).view_as(each)
            start += each.numel()
        seen: list[Tensor] = []
        for seed in range(3):
            flat.zero_()
            loss_of(call, seed).backward()
            seen.append(flat.clone())
            flat.clamp_(-1e-3, 1e-3)
            optimizer.step()
            seen += copies(model)
        return seen

    with pytest.warns(UserWarning, match=r"the gradient of 0\.weight .* stays in ordinary memory"):
        check_training(lambda: made(two), train, swap_dir)


@pytest.fixture
def process_group(tmp_path: Path) -> Generator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/ranks")
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.filterwarnings(TOLD)
@pytest.mark.usefixtures("process_group")
def test_buckets_of_ddp(as_view: bool, swap_dir: Path) -> None:
    """Also a bucket that holds one parameter alone: its gradient is all of it."""

    def one() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())

    def train(model: nn.Module, call: Any) -> list[Tensor]:
        parallel = DistributedDataParallel(call, gradient_as_bucket_view=as_view)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        seen: list[Tensor] = []
        for seed in range(4):
            optimizer.zero_grad(set_to_none=seed % 2 == 0)
            loss_of(parallel, seed).backward()
            optimizer.step()
            seen += copies(model)
        return seen

    with pytest.warns(UserWarning, match="DDP keeps .* of gradients in buckets of its own"):
        session, model = check_training(lambda: made(one), train, swap_dir)
    if not as_view:
        check_in_file(session, gradients(model))


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH, sparse=True)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        result: Tensor = self.layer(torch.tanh(self.embed(words)))
        return result


def test_sparse_gradients_pass_through(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen: list[Tensor] = []
        for first in range(3):
            call(torch.tensor([first, 7, 7])).square().sum().backward()
            gradient = model.get_parameter("embed.weight").grad
            assert gradient is not None
            assert gradient.layout is torch.sparse_coo
            optimizer.step()
            optimizer.zero_grad()
            seen += copies(model)
        return seen

    session, model = check_training(lambda: made(Sparse), train, swap_dir)
    check_in_file(session, model.parameters())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch looks
def test_compiled_autograd(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        seen: list[Tensor] = []
        for seed in range(2):
            optimizer.zero_grad()
            loss = loss_of(call, seed)
            if call is model:
                loss.backward()
            else:
                compiler: Any = torch.compile(backend="aot_eager")
                with compiled_autograd._enable(compiler):  # pyright: ignore[reportPrivateUsage]
                    loss.backward()
            optimizer.step()
            seen += copies(model)
        return seen

    session, model = check_training(lambda: made(two), train, swap_dir)
    check_in_file(session, gradients(model))
