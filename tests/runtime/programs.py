"""Small programs with kernels whose results are exact, and ways to spoil their plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random

import torch
from torch import Tensor

from zcompile.ir import (
    MANAGED_ROLES,
    PAGE_BYTES,
    Compute,
    Kernel,
    Offload,
    Release,
    Role,
    Schedule,
    Step,
    Target,
    Tier,
    Update,
    Value,
    Wait,
    given,
    kernel_name,
    operands,
    render_step,
)
from zcompile.passes.pipeline import PIPELINE, run_within_budget
from zcompile.passes.smallest import smallest_bytes
from zcompile.runtime.executor import Kernels

SIZES = (8, 200, 4096, 8200, 12_000)
PRIME = 1009


@dataclass(frozen=True, slots=True)
class Program:
    """A captured schedule and the plan for it."""

    captured: Schedule
    planned: Schedule
    target: Target

    def contents(self) -> dict[str, Tensor]:
        """Return new tensors for the values that exist before the first step."""
        present = given(self.captured)
        return {
            value.name: (torch.arange(value.nbytes // 8, dtype=torch.float64) * 7 + at) % PRIME
            for at, value in enumerate(self.captured.values)
            if value.name in present
        }

    def kernels(self) -> Kernels:
        """Return a kernel for every compute and update."""
        sizes = {value.name: value.nbytes // 8 for value in self.captured.values}
        return {
            kernel_name(step): partial(_run, step, sizes)
            for step in self.captured.steps
            if isinstance(step, Compute | Update)
        }


def _run(step: Kernel, sizes: Mapping[str, int], of: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Mix every element of every read into every write, in whole numbers: no rounding.

    One NaN makes all of the result NaN.
    """
    total = sum((_digest(of[name], at) for at, name in enumerate(step.reads)), torch.zeros(()))
    mixed = {
        name: (torch.arange(sizes[name], dtype=torch.float64) + total + at) % PRIME
        for at, name in enumerate(step.writes)
    }
    return {name: of[name].copy_(new) if name in of else new for name, new in mixed.items()}


def _digest(tensor: Tensor, salt: int) -> Tensor:
    weights = (torch.arange(tensor.numel(), dtype=torch.float64) + salt) % 7 + 1
    return (tensor * weights).sum()


def step_program(seed: int) -> Program:
    """Return forward and backward of a few layers in one schedule, under a tight budget."""
    random = Random(seed)
    depth = random.randint(2, 5)
    values = [Value("h0", random.choice(SIZES), Role.INPUT, held=random.random() < 0.5)]
    steps: list[Step] = []
    for i in range(depth):
        values += [
            Value(f"w{i}", random.choice(SIZES), Role.PARAMETER),
            Value(f"h{i + 1}", random.choice(SIZES), Role.INTERMEDIATE),
            Value(f"d{i}", random.choice(SIZES), Role.INTERMEDIATE),
            Value(f"g{i}", random.choice(SIZES), Role.GRADIENT),
        ]
        shared = random.choice([(), ("w0",)]) if i else ()
        steps.append(Compute(f"forward{i}", (f"h{i}", f"w{i}", *shared), (f"h{i + 1}",)))
    values.append(Value(f"d{depth}", 8, Role.INTERMEDIATE))
    steps.append(Compute("loss", (f"h{depth}",), (f"d{depth}",)))
    for i in reversed(range(depth)):
        reads = (f"d{i + 1}", f"h{i}", f"w{i}")
        steps.append(Compute(f"backward{i}", reads, (f"d{i}", f"g{i}")))
    outputs = (f"h{depth}", *(f"g{i}" for i in range(depth)))
    return _planned(Schedule(f"step.{seed}", tuple(values), tuple(steps), outputs), random)


def update_program(seed: int) -> Program:
    """Return the update of a few buckets of parameters with a state each, tightly planned."""
    random = Random(seed)
    values: list[Value] = []
    steps: list[Step] = []
    for bucket in range(random.randint(1, 4)):
        names = [f"p{bucket}.{part}" for part in range(random.randint(1, 2))]
        for name in names:
            nbytes = random.choice(SIZES)
            values += [
                Value(name, nbytes, Role.PARAMETER),
                Value(f"{name}:m", nbytes, Role.STATE),
                Value(f"{name}:grad", nbytes, Role.GRADIENT),
            ]
        writes = tuple(f"{name}{kind}" for name in names for kind in ("", ":m"))
        reads = (*writes, *(f"{name}:grad" for name in names))
        steps.append(Update(f"bucket{bucket}", reads, writes))
    return _planned(Schedule(f"update.{seed}", tuple(values), tuple(steps)), random)


def _planned(captured: Schedule, random: Random) -> Program:
    tiers = random.choices((Tier.NVME, Tier.HOST, Tier.DEVICE), (5, 4, 1), k=len(captured.values))
    homes = {
        value.name: tier
        for value, tier in zip(captured.values, tiers, strict=True)
        if value.role in MANAGED_ROLES
    }
    target = Target(homes=homes, has_nvme=True, host_budget=1 << 30)
    lean_bytes = smallest_bytes(captured, target).bytes
    spare_bytes = random.choice((0, PAGE_BYTES, 10 * PAGE_BYTES, 1 << 20))
    target = replace(target, device_budget=lean_bytes + spare_bytes)
    planned = run_within_budget(PIPELINE, captured, target).schedule
    return Program(captured, planned, target)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A plan with one thing wrong.

    ``schedule`` is the plan to verify.  Where a wait was taken out, a kernel could not even
    name what it reads; so the executor is given ``executed``, and does not wait for the
    ticket ``unwaited``.
    """

    what: str
    schedule: Schedule
    executed: Schedule
    unwaited: int | None = None


def without_one_dependency(plan: Schedule) -> Iterator[Mutant]:
    """Yield the plan without one wait, one release, or one release's wait for its offload."""
    for at, step in enumerate(plan.steps):
        before, after = plan.steps[:at], plan.steps[at + 1 :]
        where = f"{plan.name}, step {at}"
        without = plan.with_steps(before + after)
        match step:
            case Wait(ticket, value):
                yield Mutant(f"{where}: no wait for %{value}", without, plan, ticket)
            case Release(value, ticket):
                yield Mutant(f"{where}: no release of %{value}", without, without)
                if ticket is not None:
                    hasty = plan.with_steps((*before, Release(value), *after))
                    yield Mutant(f"{where}: release of %{value} does not wait", hasty, hasty)
            case _:
                pass


def with_neighbours_swapped(plan: Schedule) -> Iterator[tuple[Mutant, bool]]:
    """Yield the plan with two steps in the other order, and whether that can matter."""
    for at, (first, second) in enumerate(pairwise(plan.steps)):
        steps = (*plan.steps[:at], second, first, *plan.steps[at + 2 :])
        swapped = plan.with_steps(steps)
        what = f"{plan.name}, step {at}: {render_step(second)} before {render_step(first)}"
        yield Mutant(what, swapped, swapped), _depend(first, second)


def _depend(first: Step, second: Step) -> bool:
    """Say whether one of the steps changes what the other uses."""
    return bool(
        _changes(first) & (_changes(second) | _uses(second)) or _uses(first) & _changes(second)
    )


def _changes(step: Step) -> set[str]:
    match step:
        case Compute(_, _, writes) | Update(_, _, writes):
            return set(writes)
        case Offload():
            return set()
        case _:
            return {step.value}


def _uses(step: Step) -> set[str]:
    match step:
        case Compute() | Update():
            return set(operands(step))
        case _:
            return {step.value}
