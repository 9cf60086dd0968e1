"""Small models to place, of whole pages, and pins to place them by."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from zcompile.ir import Compute, Role, Schedule, Target, Tier, Value
from zcompile.passes.pins import Pin
from zcompile.passes.place import place
from zcompile.passes.placement import DoesNotFit, Placement

Model = tuple[tuple[Schedule, ...], tuple[Value, ...]]

PARAMETER = Value("layers.0.weight", 8192, Role.PARAMETER)
GRADIENT = Value("layers.0.weight:grad", 8192, Role.GRADIENT)
MOMENT = Value("layers.0.weight:exp_avg", 8192, Role.STATE)

tiers = st.sampled_from(Tier)
pins = st.lists(
    st.tuples(
        st.sampled_from(
            ["parameters", "gradients", "optimizer", "activations", "l0.*", "*.w", "l1.w", "none"]
        ),
        tiers,
    ),
    max_size=3,
)


def small(*, kernels: int = 2) -> Model:
    """A forward and a backward over one layer each, of two pages."""
    x = Value("x", 100, Role.INPUT, held=True)
    y = Value("y", 100, Role.INTERMEDIATE)
    parameters = [replace(PARAMETER, name=f"layers.{i}.weight") for i in range(kernels)]
    gradients = [replace(GRADIENT, name=f"{each.name}:grad") for each in parameters]
    forward = Schedule(
        "forward",
        (x, y, *parameters),
        (*(Compute(f"f{i}", ("x", each.name), ()) for i, each in enumerate(parameters)),
         Compute("last", ("x",), ("y",), 100)),
        ("y",),
    )  # fmt: skip
    backward = Schedule(
        "backward",
        (x, *parameters, *gradients),
        tuple(
            Compute(f"b{i}", ("x", each.name), (f"{each.name}:grad",), 8192)
            for i, each in enumerate(parameters)
        ),
        tuple(each.name for each in gradients),
    )
    states = tuple(replace(MOMENT, name=f"{each.name}:exp_avg") for each in parameters)
    return (forward, backward), states


def linear(nbytes: int = 8192) -> Model:
    """One layer whose backward reads the weight in one kernel and makes its gradient in another."""
    x = Value("x", 100, Role.ACTIVATION)
    y = Value("y", 100, Role.INTERMEDIATE)
    weight, gradient, moment = (
        replace(each, nbytes=nbytes) for each in (PARAMETER, GRADIENT, MOMENT)
    )
    steps = (
        Compute("towards_x", (weight.name,), ("y",), 100),
        Compute("towards_w", ("x", "y"), (gradient.name,), nbytes),
    )
    backward = Schedule("backward", (x, y, weight, gradient), steps, (gradient.name,))
    return (backward,), (moment,)


def attempt(model: Model, pins: list[Pin], target: Target) -> Placement | DoesNotFit:
    try:
        return place(*model, pins, target)
    except DoesNotFit as error:
        return error
