"""Expressions of captured graphs against numeric plans of the same graphs at many lengths."""

from __future__ import annotations

from typing import Any

import pytest
import sympy as sp  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch import Tensor, nn

from tests.fx.graphs import Block
from zcompile.forecasting.capturing import Request, source_of
from zcompile.forecasting.polynomials import (
    ALGEBRA,
    BATCH,
    GRID,
    SEQUENCE,
    NotPolynomial,
    interpolated,
    value_at,
)
from zcompile.forecasting.symbolic import BANDWIDTH, Symbolic, symbolic
from zcompile.forecasting.tracing import Arguments
from zcompile.forecasting.unroll import Costed
from zcompile.ir import Hardware, Schedule, Target, Tier, price
from zcompile.machines import load_machine
from zcompile.options import Options
from zcompile.passes.smallest import smallest_for_model
from zcompile.planner import Planner

LYING = (("activations", Tier.DEVICE),)
"""Of plans with what is saved for backward on the device: its copies are whole pages elsewhere."""

LENGTHS = [(2, 3), (3, 8), (16, 5), (5, 40)]


class Decoder(nn.Module):
    """An embedding, two blocks with attention, and a head: bytes grow with the sequence squared."""

    def __init__(self, width: int = 16, words: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.mix = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        for mix, block in zip(self.mix, self.blocks, strict=True):
            query, key, value = mix(x).chunk(3, -1)
            scores = (query @ key.transpose(1, 2)).softmax(-1)
            x = block(x + scores @ value)
        logits: Tensor = self.head(x)
        return logits


def decoder() -> nn.Module:
    with torch.device("meta"):
        return Decoder()


def words(batch: int, sequence: int) -> Tensor:
    return torch.zeros(batch, sequence, dtype=torch.int64, device="meta")


def graphs(batch: int, sequence: int) -> tuple[Costed, ...]:
    """Return what is captured of the decoder at these lengths, without symbols."""
    request = Request(decoder(), Arguments((words(batch, sequence),), {}), True)
    return source_of(request, whole=True).graphs()


def schedules(batch: int, sequence: int) -> tuple[Schedule, ...]:
    return tuple(each.schedule for each in graphs(batch, sequence))


@pytest.fixture(scope="module")
def found() -> Symbolic:
    torch.compiler.reset()
    return symbolic(decoder(), (words(1, 1),))


@pytest.fixture(scope="module", params=LENGTHS, ids=str)
def numeric(request: pytest.FixtureRequest) -> tuple[tuple[int, int], tuple[Costed, ...]]:
    torch.compiler.reset()
    return request.param, graphs(*request.param)


Numeric = tuple[tuple[int, int], tuple[Costed, ...]]


def at(expression: sp.Expr, lengths: tuple[int, int]) -> Any:
    return expression.subs({BATCH: lengths[0], SEQUENCE: lengths[1]})


def test_the_smallest_budget_is_the_planners(found: Symbolic, numeric: Numeric) -> None:
    lengths, costed = numeric
    captured = [each.schedule for each in costed]
    least = smallest_for_model(captured, (), LYING, Target(has_nvme=True))
    assert at(found.lean_bytes, lengths) == least.bytes


def test_the_peak_on_the_device_is_the_planners(found: Symbolic, numeric: Numeric) -> None:
    lengths, costed = numeric
    planner = Planner(Options(compute="eager"))
    planner.announce(each.schedule for each in costed)
    states = sum(each.nbytes for each in planner.values if each.role == "state")
    assert at(found.resident_bytes, lengths) == planner.peak_bytes - states


@pytest.mark.parametrize("machine", ["a100", "rtx4090"])
def test_kernels_take_what_the_roofline_says(
    machine: str, found: Symbolic, numeric: Numeric
) -> None:
    lengths, costed = numeric
    hardware = load_machine(machine)
    wanted = sum(sum(price(e.costs, hardware).seconds.values()) for e in costed)
    assert float(at(found.kernel_seconds(hardware), lengths)) == pytest.approx(wanted, rel=1e-9)


def test_the_largest_batch_is_solved(found: Symbolic) -> None:
    budget, sequence = 300_000, 7
    size = found.largest_batch(budget, sequence)
    assert size > 1
    fits, beyond = (
        smallest_for_model(schedules(each, sequence), (), LYING, Target(has_nvme=True)).bytes
        for each in (size, size + 1)
    )
    assert fits <= budget < beyond


def test_no_batch_fits_a_budget_below_the_parameters(found: Symbolic) -> None:
    assert found.largest_batch(1000, 7) == 0


@pytest.mark.parametrize("overlapped", [True, False])
def test_the_bandwidth_for_nine_tenths_gives_nine_tenths(found: Symbolic, overlapped: bool) -> None:
    hardware: Hardware = load_machine("h100")
    bandwidth = at(found.bandwidth_for(0.9, hardware, overlapped=overlapped), (8, 64))
    computing = at(found.kernel_seconds(hardware), (8, 64))
    moving = found.moved_bytes / bandwidth
    taken: Any = ALGEBRA.Max(computing, moving) if overlapped else computing + moving
    assert float(computing / taken) == pytest.approx(0.9)
    if overlapped:
        seconds = at(found.iteration_seconds(hardware), (8, 64)).subs(BANDWIDTH, bandwidth)
        assert float(seconds) == pytest.approx(float(taken))


def test_a_share_of_all_the_time_is_refused(found: Symbolic) -> None:
    with pytest.raises(ValueError, match=r"share=1\.0 must be between 0 and 1"):
        found.bandwidth_for(1.0, load_machine("h100"))


def test_what_is_no_polynomial_is_refused() -> None:
    with pytest.raises(NotPolynomial):
        interpolated([b**3 for b, _ in GRID])
    with pytest.raises(NotPolynomial):
        interpolated([(b * s) // 2 for b, s in GRID])


def test_a_polynomial_is_found_exactly() -> None:
    big = 1 << 70
    found = interpolated([big * b * s**2 - 5 * b**2 + 11 for b, s in GRID])
    assert value_at(found, 10, 20) == big * 4000 - 500 + 11
