"""What the process around a training does: default devices and types, threads, forks, saving."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset

from tests.e2e.nets import WIDTH, Net, loss_of, made, optimizer_of, step, x_of
from tests.e2e.sides import copies, in_file
from tests.mechanisms.at_home import check_in_file, check_training, gradients
from zcompile.backend import Backend


@contextmanager
def default_dtype(dtype: torch.dtype) -> Generator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "around", [torch.device("meta"), default_dtype(torch.float64)], ids=["meta", "double"]
)
def test_defaults_are_not_ours(around: Any, swap_dir: Path) -> None:
    """All that we make ourselves is made where and as it has to be, whatever the user's defaults.

    The state of Adam and its count are torch's: a count on the default device is none.
    """

    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        inputs = [x_of(seed) for seed in range(3)]
        seen: list[Tensor] = []
        for x in inputs:
            optimizer.zero_grad()
            if call is model:
                call(x).square().mean().backward()
                optimizer.step()
            else:
                with around if isinstance(around, torch.device) else default_dtype(torch.float64):
                    call(x).square().mean().backward()
                    optimizer.step()
            seen += copies(model)
        return seen

    def two() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    session, model = check_training(lambda: made(two), train, swap_dir)
    check_in_file(session, [*model.parameters(), *gradients(model)])


def test_two_threads_train_one_model(swap_dir: Path) -> None:
    """Both backwards run through one graph, and its arena, at once; sums of halves are exact."""
    backend, model, plain = Backend(), made(Net), made(Net)
    call = in_file(model, swap_dir, backend)
    x = x_of(0)
    with torch.no_grad():
        call(x)
    call(x).sum().backward()  # compiled before the threads start
    plain(x).sum().backward()
    want = [each.clone() for each in gradients(plain)]
    failures: list[BaseException] = []
    barrier = threading.Barrier(2)

    def work() -> None:
        try:
            torch.set_num_threads(1)
            for _ in range(10):
                barrier.wait()
                result = call(x)
                parameters = [each for each in model.parameters() if each.requires_grad]
                found = torch.autograd.grad(result.sum(), parameters)
                assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
        except BaseException as error:  # told by the test, which raises it again
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


class Numbers(Dataset[Tensor]):
    """Inputs by their seed, and a weight of the model as the worker sees it."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __len__(self) -> int:
        return 6

    def __getitem__(self, seed: int) -> Tensor:
        return x_of(seed) + 0 * self.weight.detach().sum()


def test_workers_are_forked_in_the_middle(swap_dir: Path) -> None:
    """They read the homes; that they end does no harm to what their parent has."""

    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = optimizer_of(model)
        seen = step(call, model, optimizer, 0)
        numbers = Numbers(model.get_parameter("first.weight"))
        for x in DataLoader(numbers, batch_size=None, num_workers=1):
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
            seen += copies(model)
        return seen

    check_training(lambda: made(Net), train, swap_dir)


def saved_bytes(value: object) -> int:
    file = io.BytesIO()
    torch.save(value, file)
    return file.tell()


def test_what_is_saved_is_as_large_as_ever(swap_dir: Path) -> None:
    """Each tensor over a home has a storage of exactly its size, and nothing of ours goes along."""
    sizes: list[int] = []

    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = AdamW(model.parameters())
        for seed in range(2):
            optimizer.zero_grad()
            loss_of(call, seed).backward()
            optimizer.step()
        states = optimizer.state_dict()["state"]
        sizes.append(saved_bytes([model.state_dict(), gradients(model), states]))
        copied = pickle.loads(pickle.dumps(model))
        loss_of(copied, 2).backward()
        return copies(model) + copies(copied)

    check_training(lambda: made(lambda: nn.Linear(WIDTH, WIDTH + 1)), train, swap_dir)
    plain, ours = sizes
    assert ours == plain


class Pieces(nn.Module):
    """Parameters of no bytes, and some that begin at odd places of one block of memory."""

    def __init__(self) -> None:
        super().__init__()
        block = torch.randn(WIDTH * WIDTH + 64)
        self.none = nn.Parameter(torch.empty(0, WIDTH))
        self.whole = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.rows = nn.ParameterList(
            nn.Parameter(block[start : start + WIDTH]) for start in (1, 36, 76)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x @ self.whole)
        for row in self.rows:
            x = x * row
        return torch.cat([x, self.none])


@pytest.mark.filterwarnings("ignore:.*made .* bytes of states in ordinary memory:UserWarning")
def test_parameters_of_no_bytes_and_at_odd_addresses(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = AdamW(model.parameters(), lr=1e-2)
        return [each for seed in range(3) for each in step(call, model, optimizer, seed)]

    session, model = check_training(lambda: made(Pieces), train, swap_dir)
    check_in_file(session, [each for each in model.parameters() if each.numel()])
    addresses = {each.data_ptr() % 64 for each in model.get_submodule("rows").parameters()}
    assert len(addresses) == 3
