"""Whole iterations: graphs with an update, and a machine whose disk and cores are shared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from tests.plan.schedules import models
from tests.plan.small_models import Model
from zcompile.ir import (
    Channel,
    Compute,
    Hardware,
    Kind,
    Link,
    Role,
    Schedule,
    Target,
    Update,
    kernel_name,
)
from zcompile.passes.placement import managed_values
from zcompile.passes.smallest import smallest_for_model

MACHINE = Hardware(
    name="one disk",
    source="made up",
    capacities={},
    links={
        Channel.NVME_READ: Link(bandwidth_bytes_per_s=2e6, uses=(("disk", 1.0), ("cores", 0.2))),
        Channel.NVME_WRITE: Link(bandwidth_bytes_per_s=1e6, uses=(("disk", 1.0),)),
        Channel.H2D: Link(bandwidth_bytes_per_s=8e6, uses=(("cores", 0.5),)),
        Channel.D2H: Link(bandwidth_bytes_per_s=8e6, uses=(("cores", 0.5),)),
    },
    flops_per_s={Kind.MATMUL: {"float32": 1.0}},
    memory_bytes_per_s=1.0,
    compute_uses=(("cores", 1.0),),
    update_uses=(("cores", 0.5),),
)


def iteration(model: Model) -> tuple[Schedule, ...]:
    """Return the graphs of ``model`` and an update of every parameter with its states."""
    graphs, states = model
    values = managed_values(graphs, states)
    steps: list[Update] = []
    for parameter in (each for each in values if each.role is Role.PARAMETER):
        own = [v.name for v in states if v.name.rpartition(":")[0] == parameter.name]
        writes = (parameter.name, *own)
        steps.append(Update(parameter.name, (*writes, f"{parameter.name}:grad"), writes))
    return (*graphs, Schedule("update", values, tuple(steps)))


def seconds_of(cycle: Sequence[Schedule], seconds: float) -> dict[str, dict[str, float]]:
    return {
        graph.name: {
            kernel_name(step): seconds for step in graph.steps if isinstance(step, Compute | Update)
        }
        for graph in cycle
    }


tiers = st.sampled_from([(None, True), (1 << 40, False), (60_000, True), (1 << 40, True)])


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[tuple[Schedule, ...], Target, float]:
    """An iteration, a target at or above its least budget, and the seconds of each kernel."""
    host, has_nvme = draw(tiers)
    cycle = iteration(draw(models()))
    target = Target(host_budget=host, has_nvme=has_nvme)
    least = smallest_for_model(cycle, (), (), target).bytes
    budget = least + draw(st.integers(0, 400_000))
    seconds = draw(st.sampled_from([0.0, 1e-3, 0.05]))
    return cycle, replace(target, device_budget=budget), seconds
