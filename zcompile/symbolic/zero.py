"""Bytes of model states on each device under ZeRO's three stages.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", SC 2020 (arXiv 1910.02054), sections 3.1, 5 and 7 and Table 1; and Ren et al.,
"ZeRO-Offload", ATC 2021 (arXiv 2101.06840), section 3.
"""

from __future__ import annotations

from enum import IntEnum
from typing import cast

import sympy as sp  # pyright: ignore[reportMissingTypeStubs]

PARAMETERS, DEVICES = sp.symbols("Psi N_d", positive=True)
"""The number of parameters, and of devices that share the states."""

HALF_BYTES = 2
ADAM_BYTES = 12
"""Bytes of a parameter that mixed-precision Adam adds: fp32 master, momentum and variance."""


class Stage(IntEnum):
    """What is partitioned: nothing, optimizer states, gradients too, parameters too."""

    NONE = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


def model_state_bytes(stage: Stage) -> sp.Expr:
    """Return the bytes of model states on each of `DEVICES` devices (Table 1's columns).

    Half-precision parameters and gradients and the states of Adam, 16 bytes a parameter.

    >>> model_state_bytes(Stage.PARAMETERS)
    16*Psi/N_d
    """
    sizes = {
        Stage.OPTIMIZER: ADAM_BYTES,
        Stage.GRADIENTS: HALF_BYTES,
        Stage.PARAMETERS: HALF_BYTES,
    }
    shared = sum(nbytes for part, nbytes in sizes.items() if part <= stage)
    whole = sum(sizes.values()) - shared
    return cast("sp.Expr", sp.expand(PARAMETERS * (whole + sp.Integer(shared) / DEVICES)))


def communicated_elements(stage: Stage) -> sp.Expr:
    """Return the elements that each device sends and receives in an iteration (section 7).

    A reduce-scatter and an all-gather of all parameters, once more for a backward that has to
    gather the parameters again.
    """
    passes = 3 if stage is Stage.PARAMETERS else 2
    return passes * PARAMETERS


def offloaded_device_bytes(*, gradients: bool, update: bool) -> sp.Expr:
    """Return the device bytes of model states under ZeRO-Offload's partitions (Table 1 there).

    Half-precision parameters stay on the device.  ``gradients`` and ``update`` say what is on
    the host; the update takes the optimizer states with it.
    """
    nbytes = HALF_BYTES
    nbytes += 0 if gradients else HALF_BYTES
    nbytes += 0 if update else ADAM_BYTES
    return nbytes * PARAMETERS


def offloaded_traffic_bytes() -> sp.Expr:
    """Return the bytes over PCIe in an iteration of ZeRO-Offload (section 3.2).

    Half-precision gradients go down and half-precision parameters come up, once each.
    """
    return 2 * HALF_BYTES * PARAMETERS
