"""Training loops of two ranks, each in a process of its own, over one folder.

Run as ``python -m tests.loops.ranks RANK RENDEZVOUS FOLDER WAY...``: fails if a way of having
two ranks gives other bits than plain PyTorch has that way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.loops.nets import Layers, adamw, x_of
from tests.loops.playing import Run, check_loop

NUM_RANKS = 2

WIDTH = 384
"""Two weights fill a bucket of DDP, which compiles the layers of each bucket by themselves."""

ROOT = Path(__file__).parents[2]

Wrap = Callable[[Run, nn.Module], Any]
Average = Callable[[nn.Module], None]


def around(run: Run, model: nn.Module, **more: Any) -> Any:
    return DistributedDataParallel(run.compile(model), bucket_cap_mb=1, **more)


def inside(run: Run, model: nn.Module) -> Any:
    return run.compile(DistributedDataParallel(model, bucket_cap_mb=1))


def alone(run: Run, model: nn.Module) -> Any:
    return run.compile(model)


def by_hand(model: nn.Module) -> None:
    """Average all gradients where they are."""
    for each in model.parameters():
        assert each.grad is not None
        dist.all_reduce(each.grad)
        each.grad /= NUM_RANKS


WAYS: Mapping[str, tuple[Wrap, Average | None]] = MappingProxyType(
    {
        "around": (around, None),
        "around, gradients are views": (partial(around, gradient_as_bucket_view=True), None),
        "inside": (inside, None),
        "by hand": (alone, by_hand),
    }
)
"""How a model is wrapped, and what averages its gradients if DDP does not."""


def loop(run: Run, way: str, kept: list[Any]) -> None:
    """Train on other data on each rank; what is wrapped goes to ``kept``."""
    wrap, average = WAYS[way]
    model = Layers(3, WIDTH)
    call, optimizer = wrap(run, model), adamw(model.parameters())
    kept.append(call)
    for seed in range(3):
        loss = call(x_of(10 * seed + dist.get_rank(), width=WIDTH)).square().mean()
        loss.backward()
        if average is not None:
            average(model)
        run.see("loss and gradients", loss, *(each.grad for each in model.parameters()))
        optimizer.step()
        if "views" in way:
            optimizer.zero_grad()  # they are DDP's, and nowhere at home
        run.see_all(model, optimizer)
        optimizer.zero_grad()


def check_way(way: str, folder: Path) -> None:
    kept: list[Any] = []
    tight = check_loop(lambda run: loop(run, way, kept), folder)
    (session,) = tight.sessions()
    parameters: list[Tensor] = [*kept[-1].parameters()]
    want_bytes = 0 if way == "by hand" else sum(each.nbytes for each in parameters)
    assert session.buckets.nbytes == want_bytes
    first = parameters[0].detach()
    others = [torch.empty_like(first) for _ in range(NUM_RANKS)]
    dist.all_gather(others, first)
    assert all(torch.equal(each, first) for each in others), "the ranks have drifted apart"


def main(rank: str, rendezvous: str, folder: str, *ways: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=NUM_RANKS
    )
    for way in ways:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            check_way(way, Path(folder))
        assert any("DDP keeps" in str(each.message) for each in told) == (way != "by hand")
    dist.destroy_process_group()


def check_ranks(folder: Path, ways: Sequence[str]) -> None:
    """Run both ranks; fail with what they wrote if one of them fails."""
    rendezvous = folder / "rendezvous"
    swap_dir = folder / "swap"
    swap_dir.mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.loops.ranks", str(rank), rendezvous, swap_dir, *ways],
            cwd=ROOT,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(NUM_RANKS)
    ]
    try:
        written = [each.communicate()[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    assert [each.returncode for each in ranks] == [0, 0], "\n".join(written)
    assert list(swap_dir.iterdir()) == [], "a process has left its files"


if __name__ == "__main__":
    main(*sys.argv[1:])
