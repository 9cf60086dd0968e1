"""Native kernels stand in for torch's, bit for bit, wherever they can and only there."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW

from tests.optim.small_session import all_on, parameters, session
from tests.optim.test_kernels import CASES, FLAGS, RULES, member, operands, same_bits, tensors
from tests.optim.twins import Make, Twins
from zcompile.ir import Tier
from zcompile.optim.chunks import GRAIN, buckets
from zcompile.optim.native import NativeKernels
from zcompile.optim.rule import Operands, Rule, Scaling
from zcompile.optim.rules import AdamRule

OPTIMIZERS: dict[str, Make] = {
    "adamw": partial(AdamW, lr=1e-2),
    "adamw-fused-amsgrad": partial(AdamW, lr=1e-2, fused=True, amsgrad=True),
    "sgd-momentum": partial(SGD, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
}


@pytest.fixture(scope="module")
def kernels() -> NativeKernels:
    found = NativeKernels.load()
    assert found is not None
    return found


def is_number(value: object) -> bool:
    return isinstance(value, int | float)


@RULES
def test_they_can_make_every_update_but_those_we_know_of(
    kernels: NativeKernels, rule: Rule, groups: list[dict[str, Any]]
) -> None:
    for group in groups:
        if rule.refusal(group, torch.float32):
            continue
        numbers = is_number(group["lr"]) and all(map(is_number, group.get("betas", ())))
        for first in FLAGS:
            way = kernels.arithmetic(rule, group, Scaling(), torch.float32, first=first)
            # Tensors as numbers round differently; the foreach form of Nesterov's momentum
            # leaves its work in the gradients.
            known = (not numbers and not rule.fused(group)) or rule.writes_grad(group, Scaling())
            assert (way is None) == known, group
            assert kernels.arithmetic(rule, group, Scaling(), torch.bfloat16, first=first) is None


@RULES
@pytest.mark.parametrize("numel", [1, 63, 4097, GRAIN + 1])
@pytest.mark.parametrize("threads", [1, 2])
def test_native_pieces_give_the_bits_of_torch_on_the_whole(
    kernels: NativeKernels, rule: Rule, groups: list[dict[str, Any]], numel: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    for group in groups[:: 1 if threads == 1 else 5]:
        scaling = Scaling(torch.tensor(3.0), torch.tensor(0.0)) if group["fused"] else Scaling()
        for first in FLAGS:
            if rule.refusal(group, torch.float32) is None:
                check_pieces(kernels, rule, group, scaling, numel, first=first)


def check_pieces(
    kernels: NativeKernels,
    rule: Rule,
    group: dict[str, Any],
    scaling: Scaling,
    numel: int,
    *,
    first: bool,
) -> None:
    way = kernels.arithmetic(rule, group, scaling, torch.float32, first=first)
    if way is None:
        return
    whole = operands(rule, group, numel, torch.float32, first=first)
    rule.run(group, scaling, [whole])
    ours = operands(rule, group, numel, torch.float32, first=first)
    pieces: list[Operands] = []
    for bucket in buckets([member(rule, group, ours)], 60_000):
        for piece in bucket.pieces:
            at = slice(piece.start, piece.stop)
            states = {name: state[at] for name, state in ours.states.items()}
            step = None if ours.step is None else ours.step.clone()
            pieces.append(
                Operands(ours.param[at], ours.grad[at], states, first, step, piece.start, numel)
            )
    kernels.run(kernels.prepared(way, rule, group, scaling, pieces))
    if ours.step is not None:
        ours.step += 1
    for one, other in zip(tensors(ours), tensors(whole), strict=True):
        assert same_bits(one, other), (group, first, numel)


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_sessions_are_plain_with_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: str, make: Make
) -> None:
    monkeypatch.setenv("ZINF_NATIVE", native)
    assert (NativeKernels.load() is None) == (native == "0")
    with session(tmp_path, parameters(), all_on(Tier.NVME)) as own:
        twins = Twins.of(own, parameters(), make)
        for iteration in range(3):
            twins.step(iteration)


def test_what_rounds_differently_is_left_to_torch(kernels: NativeKernels) -> None:
    class OtherRule(AdamRule):
        def run(self, group: Any, scaling: Scaling, operands: Any) -> None:
            super().run(group, scaling, operands)
            operands[0].param.add_(operands[0].states["exp_avg"], alpha=1e-9)

    _, groups = CASES[0]
    fresh = NativeKernels.load()
    assert fresh is not None
    assert fresh.arithmetic(OtherRule(), groups[0], Scaling(), torch.float32, first=False) is None
    assert kernels.arithmetic(AdamRule(), groups[0], Scaling(), torch.float32, first=False)
