"""Memory, arithmetic intensity and efficiency of a transformer, as ZeRO-Infinity gives them.

Source: Rajbhandari et al., "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep
Learning", SC 2021 (arXiv 2104.07857), sections 3 and 4; the numbers of equations are theirs.
Bytes are plain bytes: where the paper's Figure 2a says TB and GB it counts TiB and GiB.
"""

from __future__ import annotations

from enum import Enum
from typing import cast

import sympy as sp  # pyright: ignore[reportMissingTypeStubs]

LAYERS, HIDDEN, HEADS = sp.symbols("n_l h_d heads", positive=True)
BATCH, SEQUENCE, INTERVAL = sp.symbols("bsz seq c_i", positive=True)
"""Sequences in a batch, tokens in a sequence, and layers from one checkpoint to the next."""

BANDWIDTH, PEAK = sp.symbols("bw peak_tp", positive=True)
"""Bytes a second of the slow memory, and flops a second that kernels reach."""


class Kind(Enum):
    """What is kept in slow memory and moved in an iteration."""

    PARAMETERS_AND_GRADIENTS = "parameters and gradients"
    OPTIMIZER_STATES = "optimizer states"
    ACTIVATION_CHECKPOINTS = "activation checkpoints"


def num_parameters() -> sp.Expr:
    """Return the number of parameters (equation 1): twelve squares of `HIDDEN` a layer.

    >>> num_parameters()
    12*h_d**2*n_l
    """
    return 12 * LAYERS * HIDDEN**2


def model_state_bytes() -> sp.Expr:
    """Return the bytes of all model states (equation 2): 20 a parameter.

    Parameters and gradients in half precision; master, momentum, variance and gradient in fp32.
    `zcompile.symbolic.zero` counts 16, since it keeps no fp32 gradient.
    """
    return 20 * num_parameters()


def checkpoint_bytes() -> sp.Expr:
    """Return the bytes of activation checkpoints in half precision (equation 3)."""
    return 2 * BATCH * SEQUENCE * HIDDEN * LAYERS / INTERVAL


def working_state_bytes() -> sp.Expr:
    """Return the model states that one kernel needs at once (equation 4).

    Parameter and gradient, in half precision, of the largest operator: `HIDDEN` x 4 `HIDDEN`.
    """
    return 4 * HIDDEN * 4 * HIDDEN


def working_activation_bytes() -> sp.Expr:
    """Return the activations between two checkpoints (equation 5)."""
    return BATCH * SEQUENCE * INTERVAL * (16 * HIDDEN + 2 * HEADS * SEQUENCE)


def activation_bytes() -> sp.Expr:
    """Return the activations of all layers where nothing is checkpointed (Figure 2a)."""
    return LAYERS * working_activation_bytes().subs(INTERVAL, 1)


def computation_flops() -> sp.Expr:
    """Return the flops of an iteration that recomputes activations (equations 7 and 8).

    Two flops a parameter and token, for forward, recomputation and twice that for backward.
    """
    return 2 * 4 * BATCH * SEQUENCE * num_parameters()


def moved_bytes(kind: Kind) -> sp.Expr:
    """Return the bytes of ``kind`` that move in an iteration (section 4.1)."""
    match kind:
        case Kind.PARAMETERS_AND_GRADIENTS:
            # Read for forward, recomputation and backward; gradients are written once.
            return 2 * 4 * num_parameters()
        case Kind.OPTIMIZER_STATES:
            # Sixteen bytes a parameter, read and written.
            return 2 * 16 * num_parameters()
        case Kind.ACTIVATION_CHECKPOINTS:
            # Written in forward, read in backward.
            return 2 * checkpoint_bytes()


def arithmetic_intensity(kind: Kind) -> sp.Expr:
    """Return the flops for each byte of ``kind`` that moves (equations 9 to 11).

    >>> arithmetic_intensity(Kind.OPTIMIZER_STATES)
    bsz*seq/4
    """
    return sp.simplify(computation_flops() / moved_bytes(kind))


def efficiency(kind: Kind) -> sp.Expr:
    """Return the share of time spent computing if moves of ``kind`` never overlap (equation 6)."""
    rate = arithmetic_intensity(kind) * BANDWIDTH
    return rate / (rate + PEAK)


def bandwidth_for(kind: Kind, share: sp.Expr | float) -> sp.Expr:
    """Return the bytes a second at which ``kind`` reaches the efficiency ``share``, below 1."""
    (found,) = cast("list[sp.Expr]", sp.solve(sp.Eq(efficiency(kind), share), BANDWIDTH))
    return found


def overlapped_seconds(computing: sp.Expr, moving: sp.Expr) -> sp.Expr:
    """Return the time of an iteration whose moves overlap all computation; not in the paper.

    ``computing`` and ``moving`` are the seconds that each takes alone.
    """
    return cast("sp.Expr", sp.Max(computing, moving))


def serial_seconds(computing: sp.Expr, moving: sp.Expr) -> sp.Expr:
    """Return the time of an iteration in which nothing overlaps, as equation 6 has it."""
    return computing + moving
