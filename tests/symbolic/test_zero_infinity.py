"""Figures 2a and 3 and the claims of the ZeRO-Infinity paper, from the formulas."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import sympy as sp  # pyright: ignore[reportMissingTypeStubs]

from zcompile.symbolic.zero_infinity import (
    BANDWIDTH,
    BATCH,
    HEADS,
    HIDDEN,
    INTERVAL,
    LAYERS,
    PEAK,
    SEQUENCE,
    Kind,
    activation_bytes,
    arithmetic_intensity,
    bandwidth_for,
    checkpoint_bytes,
    computation_flops,
    efficiency,
    model_state_bytes,
    moved_bytes,
    num_parameters,
    overlapped_seconds,
    serial_seconds,
    working_activation_bytes,
    working_state_bytes,
)

K = 1024
GIB, TIB = K**3, K**4
GB = 10**9

# layers, hidden, heads: parameters (1e12), states TiB, activations TiB a node, checkpoints TiB a
# node, working states GiB, working activations GiB.  Batches are not printed beside the figure;
# the columns come out with 64, 32 and 4 sequences.
FIGURE_2A = {
    (80, 10 * K, 128): (0.10, 1.83, 2.03, 0.05, 1.95, 1.63),
    (100, 20 * K, 160): (0.50, 9.16, 3.91, 0.12, 6.25, 2.50),
    (128, 25 * K, 256): (1.01, 18.31, 7.13, 0.20, 9.77, 3.56),
    (195, 64 * K, 512): (10.05, 182.81, 24.38, 0.76, 64.00, 8.00),
    (315, 160 * K, 1024): (101.47, 1845.70, 88.59, 3.08, 400.00, 18.00),
}
ERRATUM = (80, 10 * K, 128)
"""The row whose working states are printed as 1.95: 20 squares of the hidden size, not 16."""

Shape = tuple[int, int, int]


def at(expression: sp.Expr, shape: Shape, batch: int = 1) -> float:
    sizes = dict(zip((LAYERS, HIDDEN, HEADS), shape, strict=True))
    return float(expression.subs(sizes | {BATCH: batch, SEQUENCE: K, INTERVAL: 1}))


def rounds_to(value: float, printed: float) -> bool:
    return abs(value - printed) <= 0.005 + 1e-9


@pytest.mark.parametrize("shape", FIGURE_2A)
def test_figure_2a(shape: Shape) -> None:
    parameters, states, activations, checkpoints, working_states, working = FIGURE_2A[shape]
    assert rounds_to(at(num_parameters(), shape) / 1e12, parameters)
    assert rounds_to(at(model_state_bytes(), shape) / TIB, states)
    assert rounds_to(at(activation_bytes(), shape, 64) / TIB, activations)
    assert rounds_to(at(checkpoint_bytes(), shape, 32) / TIB, checkpoints)
    assert rounds_to(at(working_activation_bytes(), shape, 4) / GIB, working)
    if shape != ERRATUM:
        assert rounds_to(at(working_state_bytes(), shape) / GIB, working_states)


def test_the_erratum_of_figure_2a() -> None:
    printed = FIGURE_2A[ERRATUM][4]
    assert at(working_state_bytes(), ERRATUM) / GIB == 1.5625
    assert rounds_to(20 * ERRATUM[1] ** 2 / GIB, printed)


GB_PER_S = (1, 3, 6, 12, 24, 48, 96, 192, 384, 768, 1536)
PARAMETERS_AT_1 = (1.44, 4.20, 8.07, 14.93, 25.99, 41.25, 58.41, 73.74, 84.89, 91.83, 95.74)
PARAMETERS_AT_16 = (18.97, 41.25, 58.41, 73.74, 84.89, 91.83, 95.74, 97.82, 98.90, 99.45, 99.72)
OPTIMIZER_AT_1 = (0.36, 1.09, 2.15, 4.20, 8.07, 14.93, 25.99, 41.25, 58.41, 73.74, 84.89)
CHECKPOINTS = {
    (2, 1): 41.25,
    (2, 2): 58.41,
    (2, 3): 67.81,
    (4, 1): 58.41,
    (8, 1): 73.74,
    (8, 3): 89.39,
    (16, 1): 84.89,
    (32, 1): 91.83,
    (64, 1): 95.74,
}
PEAK_FLOPS = 70e12
FIGURE_3 = {SEQUENCE: K, INTERVAL: 1, PEAK: PEAK_FLOPS}


def percent(kind: Kind, sizes: Mapping[sp.Symbol, float]) -> float:
    return 100 * float(efficiency(kind).subs(FIGURE_3).subs(list(sizes.items())))


@pytest.mark.parametrize(
    ("kind", "batch", "row"),
    [
        (Kind.PARAMETERS_AND_GRADIENTS, 1, PARAMETERS_AT_1),
        (Kind.PARAMETERS_AND_GRADIENTS, 16, PARAMETERS_AT_16),
        (Kind.OPTIMIZER_STATES, 1, OPTIMIZER_AT_1),
    ],
)
def test_figure_3(kind: Kind, batch: int, row: tuple[float, ...]) -> None:
    for bandwidth, printed in zip(GB_PER_S, row, strict=True):
        assert rounds_to(percent(kind, {BATCH: batch, BANDWIDTH: bandwidth * GB}), printed)


@pytest.mark.parametrize(("hidden", "bandwidth"), CHECKPOINTS)
def test_figure_3_checkpoints(hidden: int, bandwidth: int) -> None:
    sizes = {HIDDEN: hidden * K, BANDWIDTH: bandwidth * GB}
    assert rounds_to(percent(Kind.ACTIVATION_CHECKPOINTS, sizes), CHECKPOINTS[hidden, bandwidth])


def test_twice_the_batch_is_twice_the_bandwidth() -> None:
    twice = {BATCH: 2 * BATCH}
    for kind in (Kind.PARAMETERS_AND_GRADIENTS, Kind.OPTIMIZER_STATES):
        assert sp.simplify(
            efficiency(kind).subs(twice) - efficiency(kind).subs({BANDWIDTH: 2 * BANDWIDTH})
        ) == 0  # fmt: skip


def test_arithmetic_intensity() -> None:
    assert arithmetic_intensity(Kind.PARAMETERS_AND_GRADIENTS) == SEQUENCE * BATCH
    assert arithmetic_intensity(Kind.OPTIMIZER_STATES) == SEQUENCE * BATCH / 4
    assert arithmetic_intensity(Kind.ACTIVATION_CHECKPOINTS) == 24 * HIDDEN * INTERVAL


def test_without_recomputation_the_intensity_of_parameters_is_the_same() -> None:
    intensity = computation_flops() / moved_bytes(Kind.PARAMETERS_AND_GRADIENTS)
    # Six of eight parts of the flops are left, and three of four of the bytes.
    assert (6 / 8) / (3 / 4) == 1
    assert sp.simplify(intensity) == SEQUENCE * BATCH


def needed(kind: Kind, share: float, sizes: Mapping[sp.Symbol, float]) -> float:
    """Return the GB a second for the efficiency ``share``."""
    return float(bandwidth_for(kind, share).subs(FIGURE_3).subs(list(sizes.items()))) / GB


def test_claims_about_parameters_and_optimizer_states() -> None:
    half = needed(Kind.PARAMETERS_AND_GRADIENTS, 0.5, {BATCH: 1})
    assert half == pytest.approx(68.36, abs=0.005)
    assert percent(Kind.PARAMETERS_AND_GRADIENTS, {BATCH: 1, BANDWIDTH: 70 * GB}) > 50
    assert needed(Kind.OPTIMIZER_STATES, 0.5, {BATCH: 1}) == pytest.approx(4 * half)
    # The text asks for 1.5 TB/s, which is the first point of the figure above 90 %.
    assert needed(Kind.OPTIMIZER_STATES, 0.9, {BATCH: 2}) == pytest.approx(1230.5, abs=0.05)
    assert percent(Kind.OPTIMIZER_STATES, {BATCH: 2, BANDWIDTH: 1500 * GB}) == pytest.approx(
        91.65, abs=0.05
    )


def test_claims_about_checkpoints() -> None:
    kind = Kind.ACTIVATION_CHECKPOINTS
    assert percent(kind, {HIDDEN: 2 * K, BANDWIDTH: 2 * GB}) > 50
    assert needed(kind, 0.5, {HIDDEN: 2 * K}) == pytest.approx(1.424, abs=0.0005)
    assert needed(kind, 0.5, {HIDDEN: 8 * K}) < 1
    assert percent(kind, {HIDDEN: 8 * K, BANDWIDTH: 3 * GB}) > 80


@pytest.mark.parametrize(("times", "petaflops", "slow", "fast"), [
    (1, 0.07, 3, 70), (10, 0.7, 30, 700), (100, 7, 300, 7000),
])  # fmt: skip
def test_table_3_is_linear_in_the_speed_of_devices(
    times: int, petaflops: float, slow: float, fast: float
) -> None:
    """Table 3: the bandwidth of each of 512 devices at which efficiency stays what it is."""
    assert petaflops * 1e15 == pytest.approx(times * PEAK_FLOPS)
    sizes = {SEQUENCE: K, INTERVAL: 1, HIDDEN: 8 * K, BATCH: 1}
    kinds = {Kind.ACTIVATION_CHECKPOINTS: slow, Kind.PARAMETERS_AND_GRADIENTS: fast}
    for kind, bandwidth in kinds.items():
        now = efficiency(kind).subs(sizes)
        faster = now.subs({BANDWIDTH: bandwidth * GB, PEAK: times * PEAK_FLOPS})
        before = now.subs({BANDWIDTH: bandwidth / times * GB, PEAK: PEAK_FLOPS})
        assert float(faster) == pytest.approx(float(before))
    assert 512 * slow * GB == pytest.approx(times * 1.536e12)


def test_overlap_hides_the_shorter_of_the_two() -> None:
    computing, moving = sp.symbols("c m", positive=True)
    kind = Kind.PARAMETERS_AND_GRADIENTS
    serial = serial_seconds(computation_flops() / PEAK, moved_bytes(kind) / BANDWIDTH)
    assert sp.simplify(computation_flops() / PEAK / serial - efficiency(kind)) == 0
    assert overlapped_seconds(computing, moving).subs({computing: 3, moving: 2}) == 3
