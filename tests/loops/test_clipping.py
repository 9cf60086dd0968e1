"""Clipping whose factor waits for the update: torch's bits everywhere but in ``p.grad``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, Adamax, AdamW

import zcompile
from tests.loops.nets import Layers, adamw, square_loss
from tests.loops.playing import (
    AMPLE_BYTES,
    TIGHT,
    CompiledRun,
    Loop,
    Run,
    TightRun,
    play,
    unlike,
)
from zcompile.backend import zinf_backend
from zcompile.ir import Tier
from zcompile.runtime.gradient_facts import ChangedAfterClipping, GradientFacts
from zcompile.session import Session

MAX_NORM = 0.05
"""Small enough to scale every gradient of these losses."""


def by_default(run: CompiledRun) -> CompiledRun:
    """Let ``run`` use the backend that ``clip_grad_norm_`` looks at."""
    run.backend = zinf_backend
    return run


def check_loop(loop: Loop, swap_dir: Path) -> None:
    """Check that ``loop`` sees the same bits without a plan, with ample and with tight budgets."""
    plain = play(loop, Run())
    ample = by_default(CompiledRun(swap_dir, [AMPLE_BYTES]))
    assert unlike(play(loop, ample), plain) == []
    tight = by_default(TightRun(swap_dir, [int(TIGHT * each) for each in ample.least]))
    assert unlike(play(loop, tight), plain) == []


def see(run: Run, model: nn.Module, optimizer: Any) -> None:
    """Show all but the gradients, which may wait for their factor."""
    given = {name: each.grad for name, each in model.named_parameters()}
    for each in model.parameters():
        each.grad = None
    run.see_all(model, optimizer)
    for name, each in model.named_parameters():
        each.grad = given[name]


def train(
    run: Run,
    make: Callable[[Any], Any],
    *,
    model: nn.Module | None = None,
    clip: Callable[[Any], Tensor] = lambda given: zcompile.clip_grad_norm_(given, MAX_NORM),
    passes: int = 1,
) -> None:
    model = model or Layers()
    call, optimizer = run.compile(model), make(model.parameters())
    dtype = next(model.parameters()).dtype
    for seed in range(4):
        optimizer.zero_grad()
        for part in range(passes):
            x = torch.randn(5, 64, generator=torch.Generator().manual_seed(10 * seed + part))
            call(x.to(dtype)).square().mean().backward()
        run.see("norm", clip(model.parameters()))
        optimizer.step()
        see(run, model, optimizer)


@pytest.mark.parametrize(
    "make",
    [
        adamw,
        partial(adamw, fused=True),
        partial(SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
        partial(SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    ],
    ids=["adamw", "fused", "sgd", "writes gradients"],
)
def test_the_factor_gives_the_bits_of_scaling_first(
    make: Callable[[Any], Any], swap_dir: Path
) -> None:
    check_loop(lambda run: train(run, make), swap_dir)


def test_after_accumulating(swap_dir: Path) -> None:
    check_loop(lambda run: train(run, adamw, passes=3), swap_dir)


def test_in_bfloat16(swap_dir: Path) -> None:
    check_loop(lambda run: train(run, adamw, model=Layers().to(torch.bfloat16)), swap_dir)


def test_twice_in_a_row(swap_dir: Path) -> None:
    def clip(given: Any) -> Tensor:
        parameters = list(given)
        zcompile.clip_grad_norm_(parameters, 2 * MAX_NORM)
        return zcompile.clip_grad_norm_(parameters, MAX_NORM)

    check_loop(lambda run: train(run, adamw, clip=clip), swap_dir)


def test_then_by_a_norm_that_is_left_to_torch(swap_dir: Path) -> None:
    def clip(given: Any) -> Tensor:
        parameters = list(given)
        zcompile.clip_grad_norm_(parameters, MAX_NORM)
        return zcompile.clip_grad_norm_(parameters, MAX_NORM / 100, float("inf"))

    check_loop(lambda run: train(run, adamw, clip=clip), swap_dir)


@pytest.mark.filterwarnings("ignore:torch.optim.adamax.Adamax made")
def test_an_update_by_torch_finds_them_scaled(swap_dir: Path) -> None:
    check_loop(lambda run: train(run, lambda given: Adamax(given, lr=0.1)), swap_dir)


@pytest.mark.parametrize("fused", [False, True])
def test_with_a_scaler(fused: bool, swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters(), fused=fused)
        scaler = GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        for seed in range(4):
            optimizer.zero_grad()
            scaler.scale(square_loss(call, seed)).backward()
            if seed % 2:
                scaler.unscale_(optimizer)
            run.see("norm", zcompile.clip_grad_norm_(model.parameters(), MAX_NORM))
            scaler.step(optimizer)
            scaler.update()
            see(run, model, optimizer)

    check_loop(loop, swap_dir)


def in_files(swap_dir: Path, model: nn.Module) -> tuple[Any, Session]:
    """Return ``model`` compiled with everything in files, after one forward."""
    torch.compiler.reset()
    place = dict.fromkeys(("parameters", "gradients", "optimizer"), str(Tier.NVME))
    options: Any = {"compute": "eager", "nvme_dir": str(swap_dir), "place": place}
    call: Any = torch.compile(model, backend="zinf", options=options)
    square_loss(call, 0)
    (session,) = zinf_backend.sessions(model)
    return call, session


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Return the gradients; every parameter has one."""
    found = [each.grad for each in model.parameters() if each.grad is not None]
    assert len(found) == len(list(model.parameters()))
    return found


def known(session: Session, model: nn.Module) -> list[float | None]:
    """Return the sums of squares that have been gathered."""
    facts: GradientFacts = session.machine.facts
    return [facts.square_sum(each) for each in gradients_of(model)]


def test_sums_are_gathered_while_gradients_are_stored_and_used_while_they_hold(
    swap_dir: Path,
) -> None:
    model = Layers()
    call, session = in_files(swap_dir, model)
    square_loss(call, 0).backward()
    assert set(known(session, model)) == {None}  # nobody has asked for any so far
    zcompile.clip_grad_norm_(model.parameters(), MAX_NORM)
    model.zero_grad()
    square_loss(call, 1).backward()
    sums = [each for each in known(session, model) if each is not None]
    assert len(sums) == len(gradients_of(model))
    before = session.total()
    norm = zcompile.clip_grad_norm_(model.parameters(), MAX_NORM)
    assert session.total().since(before).eager_bytes == 0
    assert float(norm) == pytest.approx(sum(sums) ** 0.5, rel=1e-6)
    assert None not in known(session, model)
    gradients_of(model)[0].data.mul_(1)  # torch does not count it
    assert known(session, model)[0] is None
    parts = [float(each.double().square().sum()) for each in gradients_of(model)]
    assert sums == pytest.approx(parts, rel=1e-12)
    model.zero_grad()
    square_loss(call, 1).backward()
    square_loss(call, 2).backward()
    assert set(known(session, model)) == {None}


def test_the_norm_is_torchs_up_to_rounding(swap_dir: Path) -> None:
    model = Layers()
    call, _ = in_files(swap_dir, model)
    for seed in range(3):
        model.zero_grad()
        square_loss(call, seed).backward()
        torchs = nn.utils.get_total_norm(gradients_of(model))
        ours = zcompile.clip_grad_norm_(model.parameters(), MAX_NORM)
        assert ours.dtype is torchs.dtype
        assert ours.shape == torchs.shape
        assert float(ours) == pytest.approx(float(torchs), rel=1e-6)


def test_gradients_in_files_wait_and_those_on_the_device_do_not(swap_dir: Path) -> None:
    model, plain = Layers(), Layers()
    plain.load_state_dict(model.state_dict())
    call, _ = in_files(swap_dir, model)
    for each in (call, plain):
        square_loss(each, 0).backward()
    before = [each.clone() for each in gradients_of(model)]
    zcompile.clip_grad_norm_(model.parameters(), MAX_NORM)
    zcompile.clip_grad_norm_(plain.parameters(), MAX_NORM)
    for was, mine, theirs in zip(before, gradients_of(model), gradients_of(plain), strict=True):
        assert torch.equal(mine, was)
        assert not torch.equal(theirs, was)


@pytest.mark.parametrize("kind", [AdamW, Adamax])
@pytest.mark.filterwarnings("ignore:torch.optim.adamax.Adamax made")
def test_a_gradient_that_was_changed_meanwhile_is_refused(swap_dir: Path, kind: Any) -> None:
    model = Layers()
    call, _ = in_files(swap_dir, model)
    optimizer = kind(model.parameters(), lr=1e-2)
    square_loss(call, 0).backward()
    zcompile.clip_grad_norm_(model.parameters(), MAX_NORM)
    weights = [each.detach().clone() for each in model.parameters()]
    square_loss(call, 1).backward()
    with pytest.raises(ChangedAfterClipping, match=r"call torch\.nn\.utils\.clip_grad_norm_"):
        optimizer.step()
    with pytest.raises(ChangedAfterClipping):
        zcompile.clip_grad_norm_(model.parameters(), MAX_NORM)
    for each, weight in zip(model.parameters(), weights, strict=True):
        assert torch.equal(each, weight)
    optimizer.zero_grad()
    square_loss(call, 1).backward()
    zcompile.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()


def clipped(clip: Any, given: Any, *args: Any, **more: Any) -> tuple[Any, list[Tensor]]:
    """Return what ``clip`` gives or raises and warns of, and the gradients after it."""
    parameters = [nn.Parameter(each.detach().clone()) for each in given]
    for each, source in zip(parameters, given, strict=True):
        each.grad = None if source.grad is None else source.grad.clone()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result: Any = clip(parameters, *args, **more)
        except RuntimeError as error:
            result = str(error)
    grads = [each.grad for each in parameters if each.grad is not None]
    return (result, [str(each.message) for each in told]), grads


@pytest.mark.parametrize(
    ("args", "more"),
    [
        ((1.0,), {}),
        ((1e9,), {}),
        ((0.5, float("inf")), {}),
        ((0.5, 1), {"foreach": False}),
        ((1.0,), {"norm_type": 2, "error_if_nonfinite": True}),
    ],
)
@pytest.mark.parametrize("content", [1.0, float("nan"), float("inf")])
def test_it_is_torchs_without_a_session(args: Any, more: Any, content: float) -> None:
    given = [nn.Parameter(torch.randn(size)) for size in (3, 70_000, 1)]
    for each in given[:2]:
        each.grad = torch.randn(each.shape)
    assert given[0].grad is not None
    given[0].grad[1] = content
    (ours, told), grads = clipped(zcompile.clip_grad_norm_, given, *args, **more)
    (torchs, torch_told), torch_grads = clipped(nn.utils.clip_grad_norm_, given, *args, **more)
    assert told == torch_told
    if isinstance(torchs, str):
        assert ours == torchs
    else:
        assert torch.allclose(ours, torchs, rtol=1e-6, atol=0, equal_nan=True)
    for mine, theirs in zip(grads, torch_grads, strict=True):
        assert torch.allclose(mine, theirs, rtol=2e-6, atol=0, equal_nan=True)


def test_no_gradients_one_tensor_and_the_same_one_twice() -> None:
    assert float(zcompile.clip_grad_norm_([], 1.0)) == 0.0
    one = nn.Parameter(torch.ones(4))
    assert float(zcompile.clip_grad_norm_(one, 1.0)) == 0.0
    one.grad = torch.ones(4)
    assert float(zcompile.clip_grad_norm_(one, 1.0)) == 2.0
    assert torch.allclose(one.grad, torch.full((4,), 0.5))
    one.grad = torch.ones(4)
    assert float(zcompile.clip_grad_norm_([one, one], 1.0)) == pytest.approx(8**0.5)
    with pytest.warns(UserWarning, match="empty generator"):
        zcompile.clip_grad_norm_((each for each in list[Tensor]()), 1.0)
