"""How close plans come to what no plan can beat, and how long planning takes.

For each model, machine and budget one line: the bound on the time of an iteration (no plan at
all is faster), the bound for plans that keep copies within their graph (what runs today), the
chosen plan, the plain one, the gaps of the chosen plan to both bounds, and by how much early
updates (`docs/update.md`) would make it faster.

    python benchmarks/planning.py            # the corpus
    python benchmarks/planning.py --steps 10000 100000
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from corpus import FAMILIES, load

from zcompile.collector import sparing_the_collector
from zcompile.io_buffers import SetAside
from zcompile.ir import (
    Channel,
    Compute,
    Hardware,
    Kind,
    Link,
    Role,
    Schedule,
    Target,
    Tier,
    Value,
    price,
)
from zcompile.machines import load_machine
from zcompile.passes.certificate import Certificate, certify
from zcompile.passes.expected import UPDATE_ROOM, expected_update
from zcompile.passes.fastest import Choice, Model, choose, in_order, window_bytes
from zcompile.passes.placement import DoesNotFit, managed_values
from zcompile.passes.relaxation import SAMPLES
from zcompile.passes.smallest import smallest_for_model

CPU = Hardware(
    name="cpu",
    source="two cores and one disk, as measured on a small cloud machine",
    capacities={Tier.DEVICE: 16 << 30, Tier.NVME: 100 << 30},
    links={
        Channel.NVME_READ: Link(bandwidth_bytes_per_s=2e9, latency_s=1e-4, uses=(("disk", 1.0),)),
        Channel.NVME_WRITE: Link(bandwidth_bytes_per_s=1e9, latency_s=1e-4, uses=(("disk", 1.0),)),
    },
    flops_per_s={
        kind: {"float32": 1e11, "bfloat16": 1e11}
        for kind in (Kind.MATMUL, Kind.ATTENTION, Kind.CONVOLUTION)
    },
    memory_bytes_per_s=1e10,
    launch_s=1e-5,
)

STATES = ("exp_avg", "exp_avg_sq")


MACHINES: tuple[tuple[Hardware, bool], ...] = (
    (CPU, False),
    (load_machine("rtx4090"), True),
    (load_machine("h100"), True),
)
"""With each whether it has a host tier beside the device."""

MULTIPLES = (1.02, 2.0, 3.0, 8.0)
"""Device budgets, in smallest budgets."""


def corpus(
    only: str, multiples: Sequence[float] = MULTIPLES
) -> Iterator[tuple[str, Model, Target]]:
    for family in FAMILIES:
        if only and only != family:
            continue
        found = load(family)
        costs = found.costs
        graphs = in_order(found.schedules.values())
        states = tuple(
            Value(f"{each.name.removesuffix(':grad')}:{state}", each.nbytes, Role.STATE)
            for each in managed_values(graphs)
            if each.role is Role.GRADIENT
            for state in STATES
        )
        for hardware, has_host in MACHINES:
            seconds = {name: price(cost, hardware).seconds for name, cost in costs.items()}
            for times in (1, 4):
                model = Model(graphs * times, states)
                target = Target(
                    host_budget=256 << 20 if has_host else None,
                    has_nvme=True,
                    hardware=hardware,
                    kernel_seconds=seconds,
                )
                distinct = (*model.distinct, UPDATE_ROOM)
                least = smallest_for_model(distinct, states, (), target).bytes
                for multiple in multiples:
                    name = f"{family:6} {hardware.name:8.8} x{times} {multiple:4}"
                    yield name, model, replace(target, device_budget=int(least * multiple))


def without_latency(target: Target) -> Target:
    """Return ``target`` on a machine whose copies take only as long as their bytes need."""
    hardware = target.hardware
    assert hardware is not None
    links = {channel: replace(link, latency_s=0.0) for channel, link in hardware.links.items()}
    return replace(target, hardware=replace(hardware, links=links))


def certified(model: Model, target: Target, *, homes: bool) -> Certificate:
    hardware = target.hardware
    assert hardware is not None
    update = expected_update(model.values, hardware)
    seconds = {**target.kernel_seconds, update.schedule.name: update.seconds}
    graphs = (*model.graphs, update.schedule)
    window = window_bytes(target)
    return certify(graphs, seconds, hardware, target, homes=homes, window_bytes=window)


def compare(name: str, model: Model, target: Target) -> tuple[float, ...]:
    """Print one line.

    Returns the two gaps, the bound in seconds of kernels, how much slower the plan is than
    the plain one, and by which share it is slower with early updates.
    """
    start = time.process_time()
    choice: Choice = choose(model, target)
    took = time.process_time() - start
    every, homes = (certified(model, target, homes=each) for each in (False, True))
    kernels = next(term.seconds for term in every.terms if term.resource == "kernels")
    best, plain = choice.best.seconds, choice.compared[0].seconds
    early = early_seconds(model, target)
    gaps = every.gap(best), homes.gap(best)
    print(
        f"{name:26} kernels {kernels:7.3f} bound {every.seconds:7.3f} today {homes.seconds:7.3f} "
        f"plan {best:7.3f} plain {plain:7.3f} gap {gaps[0]:6.1%} today {gaps[1]:6.1%} "
        f"early {early / best - 1:+7.1%} "
        f"took {took:5.1f}  {homes.binding.resource}",
        flush=True,
    )
    return *gaps, every.seconds / kernels, best - plain, early / best - 1


def early_seconds(model: Model, target: Target) -> float:
    """Return how long an iteration takes if its update may begin while backward runs.

    With accumulation none begins, and where the window that is set aside for it has no room none
    does either: then nothing is known, and it is not a number.
    """
    window = SetAside(has_files=True, early_update=True).window_bytes(target.device_budget)
    if len(model.graphs) > len(model.distinct):
        return math.nan
    try:
        reserving = replace(target, reserved_bytes=target.reserved_bytes + window)
        return choose(replace(model, early_bytes=window), reserving).best.seconds
    except DoesNotFit:
        return math.nan


def synthetic(num_kernels: int) -> tuple[Model, Target]:
    """Return a stack of layers, of whose iteration a third are kernels of each graph.

    The third graph is the update, a kernel for each layer; together they are ``num_kernels``.
    """
    half = num_kernels // 3
    megabyte = 1 << 20
    weights = [Value(f"w{i}", 8 * megabyte, Role.PARAMETER) for i in range(half)]
    hidden = [Value(f"h{i}", 4096, Role.INTERMEDIATE) for i in range(half + 1)]
    hidden[0] = replace(hidden[0], role=Role.INPUT, held=True)
    saved = [replace(each, role=Role.ACTIVATION) for each in hidden]
    gradients = [Value(f"w{i}:grad", 8 * megabyte, Role.GRADIENT) for i in range(half)]
    forward = Schedule(
        "forward",
        (*weights, *hidden),
        tuple(Compute(f"f{i}", (f"h{i}", f"w{i}"), (f"h{i + 1}",), 8192) for i in range(half)),
        tuple(each.name for each in hidden[1:]),
    )
    backward = Schedule(
        "backward",
        (*weights, *saved, *gradients),
        tuple(
            Compute(f"b{i}", (f"h{i}", f"w{i}"), (f"w{i}:grad",), 8 * megabyte)
            for i in reversed(range(half))
        ),
        tuple(each.name for each in gradients),
    )
    states = tuple(Value(f"w{i}:m", 8 * megabyte, Role.STATE) for i in range(half))
    seconds = {
        "forward": {f"f{i}": 2e-3 for i in range(half)},
        "backward": {f"b{i}": 4e-3 for i in range(half)},
    }
    target = Target(
        device_budget=8 << 30,
        has_nvme=True,
        hardware=load_machine("rtx4090"),
        kernel_seconds=seconds,
    )
    return Model((forward, backward), states), target


def time_planning(num_kernels: int) -> None:
    model, target = synthetic(num_kernels)
    start = time.process_time()
    with sparing_the_collector():  # as whoever plans a model does
        choice = choose(model, target)
    took = time.process_time() - start
    start = time.process_time()
    found = certified(model, target, homes=True)
    bounding = time.process_time() - start
    planned = sum(len(plan.schedule.steps) for plan in choice.best.plans.values())
    planned += len(choice.best.update.steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{num_kernels} steps, {planned} when planned: planned in {took:.1f} s "
        f"({len(choice.compared)} candidates), bounded in {bounding:.1f} s "
        f"(at {SAMPLES} kernels), {choice.best.seconds:.1f} s, "
        f"{found.gap(choice.best.seconds):.1%}, {peak} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, nargs="*", help="only time planning, of so many kernels"
    )
    parser.add_argument("--only", default="", choices=FAMILIES, help="only this model")
    parser.add_argument(
        "--budgets", type=float, nargs="*", default=MULTIPLES, help="in smallest budgets"
    )
    parser.add_argument(
        "--without-latency", action="store_true", help="to see what of the gaps is latency"
    )
    asked = parser.parse_args()
    if asked.steps:
        for num_kernels in asked.steps:
            time_planning(num_kernels)
        return
    rows = [
        compare(name, model, without_latency(target) if asked.without_latency else target)
        for name, model, target in corpus(asked.only, asked.budgets)
    ]
    for at, what in enumerate(("every plan", "today's plans")):
        gaps = [row[at] for row in rows]
        print(
            f"gap to the bound of {what}: median {statistics.median(gaps):.1%}, "
            f"largest {max(gaps):.1%}, of {len(gaps)}"
        )
    print(f"bound at least 1.3 times the kernels: {sum(row[2] >= 1.3 for row in rows)}")
    print(f"plans above the plain one: {sum(row[3] > 0 for row in rows)}")


if __name__ == "__main__":
    main()
