"""torch's own kernels on pieces give the bits of torch's own kernels on the whole."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from zcompile.ir import Role, Tier
from zcompile.optim.chunks import GRAIN, Member, Part, buckets
from zcompile.optim.lion import LionRule
from zcompile.optim.rule import Operands, Rule, Scaling
from zcompile.optim.rules import AdamRule, SgdRule
from zcompile.optim.square_rules import AdagradRule, RmsPropRule

PATHS: tuple[dict[str, bool], ...] = ({}, {"foreach": True}, {"fused": True})
FLAGS = (False, True)
SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg")
"""States that are not negative."""


def adam_groups() -> Iterator[dict[str, Any]]:
    usual = {"lr": 1.37e-3, "betas": (0.9, 0.999), "eps": 1e-8, "capturable": False}
    usual |= {"differentiable": False, "foreach": None, "fused": None}
    for path, amsgrad, maximize, decay, decoupled in product(
        PATHS, FLAGS, FLAGS, (0, 0.013), FLAGS
    ):
        if decoupled and not decay:
            continue
        yield (
            usual
            | path
            | {
                "amsgrad": amsgrad,
                "maximize": maximize,
                "weight_decay": decay,
                "decoupled_weight_decay": decoupled,
            }
        )
    plain = {"amsgrad": False, "maximize": False, "weight_decay": 0.013}
    for path, decoupled in product(({}, {"fused": True}), FLAGS):
        lr = torch.tensor(1.37e-3)
        yield usual | path | plain | {"lr": lr, "decoupled_weight_decay": decoupled}
    betas = (torch.tensor(0.9), torch.tensor(0.999))
    yield usual | plain | {"betas": betas, "decoupled_weight_decay": True}


def sgd_groups() -> Iterator[dict[str, Any]]:
    usual = {"differentiable": False, "foreach": None, "fused": None}
    moments = ((0, 0, False), (0.9, 0, False), (0.9, 0.1, False), (0.9, 0, True))
    rates = (1.37e-2, torch.tensor(1.37e-2))
    for path, moment, maximize, decay, lr in product(PATHS, moments, FLAGS, (0, 0.013), rates):
        momentum, dampening, nesterov = moment
        yield (
            usual
            | path
            | {
                "momentum": momentum,
                "dampening": dampening,
                "nesterov": nesterov,
                "maximize": maximize,
                "weight_decay": decay,
                "lr": lr,
            }
        )


def adagrad_groups() -> Iterator[dict[str, Any]]:
    usual: dict[str, Any] = {"lr": 1.37e-2, "lr_decay": 0.1, "eps": 1e-10}
    usual |= {"differentiable": False}
    usual |= {"foreach": None, "fused": None}
    for path, maximize, decay in product(PATHS, FLAGS, (0, 0.013)):
        yield usual | path | {"maximize": maximize, "weight_decay": decay}
    yield usual | {"lr": torch.tensor(1.37e-2), "maximize": False, "weight_decay": 0}


def rmsprop_groups() -> Iterator[dict[str, Any]]:
    usual = {"lr": 1.37e-2, "alpha": 0.99, "eps": 1e-8, "fused": None, "foreach": None}
    usual |= {"differentiable": False, "capturable": False}
    for path, maximize, decay, momentum, centered in product(
        PATHS[:2], FLAGS, FLAGS, (0, 0.9), FLAGS
    ):
        decays = {"maximize": maximize, "weight_decay": 0.013 if decay else 0}
        yield usual | path | decays | {"momentum": momentum, "centered": centered}


def lion_groups() -> Iterator[dict[str, Any]]:
    usual = {"lr": 1.37e-3, "betas": (0.9, 0.99), "fused": None, "foreach": None}
    for maximize, decay in product(FLAGS, (0, 0.013)):
        yield usual | {"maximize": maximize, "weight_decay": decay}


CASES: Sequence[tuple[Rule, Sequence[dict[str, Any]]]] = (
    (AdamRule(), tuple(adam_groups())),
    (SgdRule(), tuple(sgd_groups())),
    (AdagradRule(), tuple(adagrad_groups())),
    (RmsPropRule(), tuple(rmsprop_groups())),
    (LionRule(), tuple(lion_groups())),
)


def operands(
    rule: Rule, group: dict[str, Any], numel: int, dtype: torch.dtype, *, first: bool
) -> Operands:
    random = torch.Generator().manual_seed(numel)

    def made(scale: float, *, positive: bool = False) -> Tensor:
        tensor = torch.randn(numel, generator=random) * scale
        return (tensor.abs() + 1e-8 if positive else tensor).to(dtype)

    states = {name: made(1e-3, positive=name in SQUARES) for name in rule.state_names(group)}
    if "grad_avg" in states:  # a variance is not negative
        states["square_avg"] += states["grad_avg"].square() * 1.1
    if first:
        states = {name: state.zero_() for name, state in states.items()}
    step = torch.tensor(0.0 if first else 4.0) if rule.counts_steps else None
    return Operands(made(0.1), made(1.0), states, first, step)


def member(rule: Rule, group: dict[str, Any], of: Operands) -> Member:
    return Member(
        parts=(Part("w", Role.PARAMETER, Tier.NVME, of.param.itemsize, written=True),),
        group=0,
        numel=of.param.numel(),
        itemsize=of.param.itemsize,
        temporaries=rule.temporaries(group, first=of.first),
        tails_differ=rule.tails_differ(group, of.param.dtype),
        threads=torch.get_num_threads(),
    )


def tensors(of: Operands) -> list[Tensor]:
    return [of.param, of.grad, *of.states.values(), *([] if of.step is None else [of.step])]


def update_in_pieces(
    rule: Rule, group: dict[str, Any], scaling: Scaling, of: Operands, window_bytes: int
) -> int:
    """Update ``of`` in pieces as a session does; return the number of calls."""
    num_calls = 0
    for bucket in buckets([member(rule, group, of)], window_bytes):
        for span in (span for call in bucket.calls for span in call):
            first = bucket.pieces[span.piece].start
            at = slice(first + span.start, first + span.stop)
            states = {name: state[at] for name, state in of.states.items()}
            step = None if of.step is None else of.step.clone()
            piece = Operands(of.param[at], of.grad[at], states, of.first, step)
            rule.run(group, scaling, [piece])
            for name, state in piece.states.items():
                of.states[name][at] = state
            num_calls += 1
    if of.step is not None:
        of.step += 1
    return num_calls


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def check_pieces(
    rule: Rule, group: dict[str, Any], dtype: torch.dtype, numel: int, window_bytes: int
) -> int:
    """Check one update against the whole; return the largest number of calls that it took."""
    if rule.refusal(group, dtype):
        return 0
    scaling = Scaling(torch.tensor(3.0), torch.tensor(0.0)) if group["fused"] else Scaling()
    num_calls = 0
    for first in FLAGS:
        whole = operands(rule, group, numel, dtype, first=first)
        rule.run(group, scaling, [whole])
        pieces = operands(rule, group, numel, dtype, first=first)
        num_calls = max(num_calls, update_in_pieces(rule, group, scaling, pieces, window_bytes))
        for one, other in zip(tensors(whole), tensors(pieces), strict=True):
            assert same_bits(one, other), (group, first)
    return num_calls


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
RULES = pytest.mark.parametrize(
    ("rule", "groups"), CASES, ids=["adam", "sgd", "adagrad", "rmsprop", "lion"]
)


@RULES
@DTYPES
@pytest.mark.parametrize("numel", [1, 63, 4097, GRAIN + 1])
def test_pieces_give_the_bits_of_the_whole(
    rule: Rule, groups: Sequence[dict[str, Any]], numel: int, dtype: torch.dtype
) -> None:
    most = max(check_pieces(rule, group, dtype, numel, window_bytes=60_000) for group in groups)
    assert most > 1 or numel < GRAIN


@RULES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("threads", "numel", "window_bytes"),
    [
        pytest.param(2, 100_003, 100_000, id="shares-have-tails"),
        pytest.param(3, 3 * 64 * 1201, 1 << 20, id="shares-end-evenly"),
    ],
)
def test_pieces_give_the_bits_of_the_whole_on_several_threads(
    rule: Rule,
    groups: Sequence[dict[str, Any]],
    threads: int,
    numel: int,
    window_bytes: int,
    dtype: torch.dtype,
) -> None:
    torch.set_num_threads(threads)
    for group in groups[::11]:
        check_pieces(rule, group, dtype, numel, window_bytes)


@RULES
def test_gradients_change_exactly_where_we_say_so(
    rule: Rule, groups: Sequence[dict[str, Any]]
) -> None:
    for group in groups:
        scaled = Scaling(torch.tensor(3.0), torch.tensor(0.0))
        for scaling in (Scaling(), scaled) if group["fused"] else (Scaling(),):
            of = operands(rule, group, 1000, torch.float32, first=False)
            before = of.grad.clone()
            rule.run(group, scaling, [of])
            changed = not same_bits(before, of.grad)
            assert changed == rule.writes_grad(group, scaling), group


class _LargestTemporaries(TorchDispatchMode):
    """Counts the elements of new tensors alive at once; views of what was there are none."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._known = {each.untyped_storage().data_ptr() for each in known}
        self._alive: dict[int, int] = {}
        self.numel = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.numel() > 1:
                self._count(each)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._known | self._alive.keys():
            return
        self._alive[storage.data_ptr()] = tensor.numel()
        weakref.finalize(storage, self._alive.pop, storage.data_ptr())
        self.numel = max(self.numel, sum(self._alive.values()))


@RULES
@pytest.mark.parametrize("sizes", [(1000,), (1000, 1000, 1000), (10, 1000)], ids=str)
def test_kernels_hold_no_more_temporaries_than_we_say(
    rule: Rule, groups: Sequence[dict[str, Any]], sizes: tuple[int, ...]
) -> None:
    for group, first in product(groups, FLAGS):
        each = [operands(rule, group, numel, torch.float32, first=first) for numel in sizes]
        known = [tensor for one in each for tensor in tensors(one)]
        with _LargestTemporaries(known) as seen:
            rule.run(group, Scaling(), each)
        assert seen.numel <= rule.temporaries(group, first=first) * sum(sizes), (group, first)


def test_fused_half_precision_momentum_is_refused_because_torch_reads_past_its_end() -> None:
    group = {"momentum": 0.9, "fused": True, "foreach": None, "differentiable": False}
    assert SgdRule().refusal(group, torch.bfloat16)
    assert SgdRule().refusal(group, torch.float32) is None
    assert SgdRule().refusal(group | {"momentum": 0}, torch.bfloat16) is None
