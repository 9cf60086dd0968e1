"""Activations that leave the device between forward and backward: same bits, fewer bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint as torch_checkpoint

from tests.e2e.jobs import compiled, same_bits
from tests.e2e.sides import copies
from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.ir import Role, Tier
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.fuzz import FuzzExecutor
from zcompile.runtime.ledger import Channel
from zcompile.runtime.machine import MakeExecutor
from zcompile.session import Session

WIDTH, BATCH = 16, 512
SAVED = {"activations": "nvme"}

EXECUTORS = [CpuExecutor, *(partial(FuzzExecutor, seed=seed) for seed in range(2))]


class Block(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))
        return x + y


class Blocks(nn.Module):
    """Far more bytes of activations than of weights."""

    def __init__(self, depth: int = 3, drop: float = 0.1, *, recompute: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(drop) for _ in range(depth))
        self.recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = recomputed(block, x) if self.recompute else block(x)
        return x


def recomputed(block: nn.Module, x: Tensor) -> Tensor:
    return cast("Tensor", torch_checkpoint.checkpoint(block, x, use_reentrant=False))


def made(**more: Any) -> nn.Module:
    torch.manual_seed(0)
    return Blocks(**more)


def alike(got: list[Tensor], want: list[Tensor]) -> bool:
    return all(same_bits(ours, theirs) for ours, theirs in zip(got, want, strict=True))


def batch(seed: int, size: int = BATCH) -> Tensor:
    return torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(seed))


def trained(
    model: nn.Module, call: Callable[[Tensor], Any], sizes: tuple[int, ...]
) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    seen: list[Tensor] = []
    for seed, size in enumerate(sizes):
        optimizer.zero_grad()
        loss = call(batch(seed, size)).square().mean()
        loss.backward()
        optimizer.step()
        seen += copies(model, loss)
    return seen


def least_budget(swap_dir: Path, **options: Any) -> int:
    with pytest.raises(BudgetError) as refused:
        compiled(made(), {"device_budget": "8KiB", "nvme_dir": swap_dir, **options})(batch(0))
    torch.compiler.reset()
    return refused.value.smallest_bytes


def session_of(backend: Backend, model: nn.Module) -> Session:
    (session,) = backend.sessions(model)
    return session


def moved(session: Session) -> int:
    """Return how many saved values are away from the device in the plans of ``session``."""
    return sum(
        value.role is Role.SAVED and value.home is not Tier.DEVICE
        for planned in session.planned()
        for value in planned.schedule.values
    )


@pytest.mark.parametrize("make_executor", EXECUTORS, ids=["cpu", "fuzz 0", "fuzz 1"])
@pytest.mark.parametrize("percent", [100, 110, 150])
def test_tight_budgets_move_activations_and_no_bit(
    make_executor: MakeExecutor, percent: int, swap_dir: Path
) -> None:
    plain = made()
    want = trained(plain, plain, (BATCH,) * 2)
    torch.compiler.reset()
    kept: dict[str, Any] = {"compute": "eager", "recompute": "never"}
    budget = least_budget(swap_dir, **kept) * percent // 100
    backend, model = Backend(make_executor), made()
    options = {**kept, "device_budget": budget, "nvme_dir": swap_dir}
    got = trained(model, compiled(model, options, backend), (BATCH,) * 2)
    assert alike(got, want)
    session = session_of(backend, model)
    assert moved(session) > 0
    assert session.total().peak_bytes[Tier.DEVICE] <= budget


def test_the_smallest_budget_is_less_than_the_activations(swap_dir: Path) -> None:
    saved = 3 * 4 * BATCH * WIDTH * 4 * 2  # of each block, what enters and what leaves gelu
    assert least_budget(swap_dir, compute="eager") < saved
    pinned = least_budget(swap_dir, compute="eager", place={"activations": "device"})
    assert pinned > saved


def test_inductor_has_the_same_bits_wherever_activations_are(swap_dir: Path) -> None:
    seen: list[list[Tensor]] = []
    for place in ({"activations": "device"}, SAVED):
        torch.compiler.reset()
        backend, model = Backend(), made()
        options = {"device_budget": "64MiB", "nvme_dir": swap_dir, "place": place}
        call = compiled(model, options, backend)
        seen.append(trained(model, call, (BATCH,) * 2))
        assert (moved(session_of(backend, model)) > 0) == (place is SAVED)
    assert alike(*seen)


def test_host_memory_takes_them_where_there_are_no_files(swap_dir: Path) -> None:
    del swap_dir
    plain = made()
    want = trained(plain, plain, (BATCH,) * 2)
    torch.compiler.reset()
    backend, model = Backend(), made()
    options = {
        "compute": "eager",
        "device_budget": "64MiB",
        "host_budget": "64MiB",
        "place": {"activations": "host"},
    }
    got = trained(model, compiled(model, options, backend), (BATCH,) * 2)
    assert alike(got, want)
    session = session_of(backend, model)
    assert session.total().peak_bytes[Tier.HOST] > 0
    assert session.total().moved_bytes[Channel.H2D] > 0


def test_shapes_change_from_call_to_call(swap_dir: Path) -> None:
    sizes = (64, 512, 96, 512, 700)
    plain = made()
    want = trained(plain, plain, sizes)
    torch.compiler.reset()
    backend, model = Backend(), made()
    options = {"compute": "eager", "device_budget": "64MiB", "nvme_dir": swap_dir, "place": SAVED}
    got = trained(model, compiled(model, options, backend, dynamic=True), sizes)
    assert alike(got, want)
    session = session_of(backend, model)
    assert moved(session) > 0
    names = [planned.schedule.name for planned in session.planned()]
    assert len(names) == 2, "a plan for larger shapes drops no graph"


def test_sizes_that_vary_take_no_larger_budget(swap_dir: Path) -> None:
    x = batch(0).reshape(8, 64, WIDTH)
    x = torch.cat([x, x[:, :1]], dim=1)[:, :-1]  # forward saves views, of sizes that it computes
    options = {"compute": "eager", "device_budget": "8KiB", "nvme_dir": swap_dir}
    smallest: set[int] = set()
    for dynamic in (False, True):
        with pytest.raises(BudgetError) as refused:
            compiled(made(), options, dynamic=dynamic)(x)
        torch.compiler.reset()
        smallest.add(refused.value.smallest_bytes)
    assert len(smallest) == 1


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_what_is_recomputed_comes_from_what_was_moved(drop: float, swap_dir: Path) -> None:
    plain = made(drop=drop, recompute=True)
    want = trained(plain, plain, (BATCH,) * 2)
    torch.compiler.reset()
    backend, model = Backend(), made(drop=drop, recompute=True)
    options = {"compute": "eager", "device_budget": "64MiB", "nvme_dir": swap_dir, "place": SAVED}
    got = trained(model, compiled(model, options, backend), (BATCH,) * 2)
    assert alike(got, want)


def script(model: nn.Module, call: Callable[[Tensor], Any]) -> list[Tensor]:
    """Walk a graph twice, hold two at once, drop one that is never walked."""
    torch.manual_seed(1)
    loss = call(batch(0)).square().mean()
    loss.backward(retain_graph=True)
    seen = copies(model, loss)
    loss.backward()
    seen += copies(model)
    first, second, dropped = (call(batch(at)).square().mean() for at in (1, 2, 3))
    del dropped
    second.backward()
    seen += copies(model)
    first.backward()
    return seen + copies(model)


def test_graphs_are_walked_twice_kept_and_dropped(swap_dir: Path) -> None:
    # Without dropout: plain PyTorch and AOTAutograd draw in the same order, but only within one.
    plain = made(drop=0.0)
    want = script(plain, plain)
    torch.compiler.reset()
    backend, model = Backend(), made(drop=0.0)
    options = {"compute": "eager", "device_budget": "64MiB", "nvme_dir": swap_dir, "place": SAVED}
    got = script(model, compiled(model, options, backend))
    assert alike(got, want)


def test_a_graph_that_goes_takes_its_activations_along(swap_dir: Path) -> None:
    backend, model = Backend(), made()
    options = {"compute": "eager", "device_budget": "64MiB", "nvme_dir": swap_dir, "place": SAVED}
    call = compiled(model, options, backend)
    call(batch(0)).square().mean().backward()
    session = session_of(backend, model)
    gc.collect()
    rest = session.total().held_bytes[Tier.NVME]
    loss = call(batch(1)).square().mean()
    assert session.total().held_bytes[Tier.NVME] > rest
    del loss
    gc.collect()
    assert session.total().held_bytes[Tier.NVME] == rest


def test_an_error_between_forward_and_backward_loses_nothing(swap_dir: Path) -> None:
    class Refused(Exception):
        pass

    def refuse(_: Tensor) -> None:
        raise Refused

    backend, model = Backend(), made(drop=0.0)
    options = {"compute": "eager", "device_budget": "64MiB", "nvme_dir": swap_dir, "place": SAVED}
    call = compiled(model, options, backend)
    result = call(batch(0))
    result.register_hook(refuse)
    with pytest.raises(Refused):
        result.square().mean().backward()
    plain = made(drop=0.0)
    plain(batch(1)).square().mean().backward()
    call(batch(1)).square().mean().backward()
    assert alike(copies(model), copies(plain))


def test_hooks_on_saved_tensors_see_the_numbers(swap_dir: Path) -> None:
    backend, model = Backend(), made(drop=0.0)
    options = {"compute": "eager", "device_budget": "64MiB", "nvme_dir": swap_dir, "place": SAVED}
    call = compiled(model, options, backend)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each.clone(), lambda each: each):
        loss = call(batch(0)).square().mean()
    loss.backward()
    plain = made(drop=0.0)
    plain(batch(0)).square().mean().backward()
    assert alike(copies(model), copies(plain))
