"""Direct transfers beside mappings of the same file: whoever looks sees whole, current bytes."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.e2e.sides import in_file
from zcompile.backend import Backend
from zcompile.runtime.ledger import Channel

SIZE, STEPS = 65_536, 25


class Ones(nn.Module):
    """Parameters that are constants, with a gradient of ones: each step subtracts one."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.full((SIZE,), 100.0)) for _ in range(3))
        self.frozen = nn.Parameter(torch.full((SIZE,), 7.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        products = [(weight * x).sum() for weight in self.weights]
        return torch.stack(products).sum() + (self.frozen * 0).sum()


def test_eager_readers_see_old_or_new_elements_during_updates(swap_dir: Path) -> None:
    backend, model = Backend(), Ones()
    call, optimizer = in_file(model, swap_dir, backend), SGD(model.parameters(), lr=1.0)
    call(torch.ones(SIZE))
    done = threading.Event()
    wrong: list[str] = []
    reads = [0]

    def read() -> None:
        while not done.is_set():
            for each in model.weights:
                seen = each.detach().clone()
                if not torch.equal(seen, seen.round()) or seen.min() < 100 - STEPS:
                    wrong.append(f"{seen.min()} {seen.max()}")
            if not model.frozen.eq(7).all():
                wrong.append("a parameter that nobody changes")
            reads[0] += 1

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for at in range(STEPS):
            optimizer.zero_grad()
            call(torch.ones(SIZE)).backward()
            optimizer.step()
            for each in model.weights:
                assert each.eq(99 - at).all()
    finally:
        done.set()
        reader.join()
    assert wrong == []
    assert reads[0] > 0
    (session,) = backend.sessions(model)
    assert session.total().moved_bytes[Channel.NVME_WRITE] >= STEPS * 3 * SIZE * 4


def test_eager_stores_between_graphs_reach_the_next_one(swap_dir: Path) -> None:
    """Single elements, all over the file, whose pages are dirty when the next fetch begins."""
    backend, model = Backend(), Ones()
    call = in_file(model, swap_dir, backend)
    x = torch.ones(SIZE)
    with torch.no_grad():
        for at in range(STEPS):
            for each in model.weights:
                each.data.fill_(at)
                each.data[at * 2000] += 1
            assert call(x).item() == 3 * (SIZE * at + 1)
