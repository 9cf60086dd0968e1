"""Relaxation: the least time of an iteration by linear programming, and what is away meanwhile.

Note [What the plans are].  The bound is for the steady state: the iteration repeats, what it
leaves on the device at its end may serve the next one, and copies of one may run beside kernels of
the next.  Values may be cut into pieces.  Kernels run one after another in their order, each copy
goes between the device and one tier, and none between host and nvme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zcompile.ir import Channel, Tier
from zcompile.passes.constraints import formulate
from zcompile.passes.cycle import Cycle
from zcompile.passes.formulation import Formulation, Question
from zcompile.passes.groups import MANY_KERNELS, at_edges, sampled
from zcompile.passes.linear import Duals, Program, Solved, checked_bound, solve
from zcompile.passes.placement import DoesNotFit

SAMPLES = 200
"""How many kernels the program looks at: more change the bound by less than a thousandth."""

MAX_ROUNDS = 2
"""How often kernels at which the answer breaks the budget are looked at too, if they are few."""

MAX_EDGES = 100
"""Of iterations of more graphs than half of this, beginnings and ends are not looked at."""

MAX_COLUMNS = 60_000
"""With more columns than this the program looks at fewer kernels."""

SAFETY = 1e-9
"""The share by which a bound is lowered, for the rounding of sums of floats."""


@dataclass(frozen=True, slots=True)
class Stay:
    """What is away during one pause of a value, in bytes; the rest stays on the device."""

    host_bytes: int = 0
    nvme_bytes: int = 0
    remade_bytes: int = 0

    @property
    def away_bytes(self) -> int:
        return self.host_bytes + self.nvme_bytes + self.remade_bytes


Residency = Mapping[str, tuple[Stay, ...]]
"""By value, what is away in each of its pauses, in their order."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A linear program and multipliers from which anybody can compute the bound."""

    program: Program
    duals: Duals
    unit_s: float
    kernel_s: float

    @property
    def seconds(self) -> float:
        """Compute the bound anew: only this sum is believed, not what the solver said."""
        stall_s = checked_bound(self.program, self.duals) * self.unit_s
        return (self.kernel_s + max(0.0, stall_s)) * (1 - SAFETY)


@dataclass(frozen=True, slots=True)
class Pressure:
    """What the multipliers say a resource or a budget is worth at the optimum.

    ``channel_bytes`` are what each channel moves.  ``stalled_s`` is by resource how much of
    the iteration it decides; ``device_s_per_byte`` and ``host_s_per_byte`` are the
    seconds that one more byte of budget saves.
    """

    channel_bytes: Mapping[Channel, float]
    stalled_s: Mapping[str, float]
    device_s_per_byte: float
    host_s_per_byte: float


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The answer to a `Question`: ``seconds`` no plan of its kind can beat, and why."""

    seconds: float
    proof: Proof
    residency: Residency
    pressure: Pressure
    prices: tuple[tuple[int, float], ...]
    """By sampled kernel: the seconds that one more byte of room there would save."""


def relax(question: Question, count: int = SAMPLES) -> Relaxation:
    """Return the least time of the iteration, looking at about ``count`` of its kernels.

    The device budget of the question must be given.  Raises ``DoesNotFit`` if a kernel alone
    does not fit, or what has to be away has no room on the tiers there are.
    """
    form, answer = _solved(question, _affordable(question, count))
    residency = _filled(form, answer.columns)
    for _ in range(MAX_ROUNDS if len(question.cycle.kernels) <= MANY_KERNELS else 0):
        known = tuple(sample.kernel for sample in form.samples)
        broken = _broken(question.cycle, residency, question.device_bytes)
        more = tuple(sorted({*known, *_spread(broken, count // 4)}))
        if more == known:
            break
        form, answer = _solved(question, more)
        residency = _filled(form, answer.columns)
    proof = Proof(form.program, answer.duals, form.unit_s, question.cycle.kernel_s)
    prices = tuple(
        (sample.kernel, _price(form, answer.duals, at)) for at, sample in enumerate(form.samples)
    )
    return Relaxation(
        proof.seconds, proof, residency, _pressure(form, answer.columns, answer.duals), prices
    )


def _solved(question: Question, samples: tuple[int, ...]) -> tuple[Formulation, Solved]:
    form = formulate(question, samples)
    answer = solve(form.program)
    if answer is None:
        raise _misfit(question)
    return form, answer


def _affordable(question: Question, count: int) -> tuple[int, ...]:
    """Return sampled kernels, so few that the program keeps to its size."""
    edges = at_edges(question.cycle) if question.homes else ()
    edges = edges if len(edges) <= MAX_EDGES else ()
    while True:
        samples = tuple(sorted({*sampled(question.cycle, count), *edges}))
        if len(formulate(question, samples).program.costs) <= MAX_COLUMNS or count <= 8:
            return samples
        count //= 2


def _misfit(question: Question) -> DoesNotFit:
    fullest = max(kernel.held_bytes for kernel in question.cycle.kernels)
    missing = fullest - question.device_bytes
    if missing > 0:
        return DoesNotFit("device_budget", missing, "a kernel needs more than there is")
    if question.tiers:
        return DoesNotFit("host_budget", 0, "what cannot stay on the device fits nowhere")
    return DoesNotFit("device_budget", 0, "all must stay on the device: there is no other tier")


def _filled(form: Formulation, columns: Sequence[float]) -> Residency:
    """Divide what is away of each group among its members, the same first in every pause.

    So what is away on nvme in one pause is, of the same members, what is there in another,
    and each byte is written once.
    """
    cycle = form.question.cycle
    found = {value.name: [Stay() for _ in value.pauses] for value in cycle.values}
    for number, group in enumerate(form.groups):
        num_pauses = len(cycle.values[group.members[0]].pauses)
        for at in range(num_pauses):
            edges = _edges(form, columns, number, at)
            passed = 0
            for member in group.members:
                value = cycle.values[member]
                end = passed + value.nbytes
                parts = [max(0, min(b, end) - max(a, passed)) for a, b in edges]
                found[value.name][at] = Stay(*parts)
                passed = end
    return {name: tuple(stays) for name, stays in found.items()}


def _edges(
    form: Formulation, columns: Sequence[float], number: int, at: int
) -> tuple[tuple[int, int], ...]:
    """Return which bytes of a group are on the host, on nvme and made again; nvme comes first."""
    passed = 0
    found: dict[Tier | None, tuple[int, int]] = {}
    for tier in (Tier.NVME, Tier.HOST, None):
        column = form.away.get((number, at, tier))
        nbytes = 0 if column is None else round(columns[column] * form.unit_bytes)
        end = min(passed + max(0, nbytes), form.groups[number].nbytes)
        found[tier] = (passed, end)
        passed = end
    return found[Tier.HOST], found[Tier.NVME], found[None]


def held_bytes(cycle: Cycle, residency: Residency) -> list[int]:
    """Return what each kernel holds if just what is not away stays; copies ahead of need aside."""
    changes = [0] * (len(cycle.kernels) + 1)
    for value in cycle.values:
        for pause, stay in zip(value.pauses, residency[value.name], strict=True):
            kept = value.nbytes - stay.away_bytes if pause.live else 0
            for covered in cycle.covered(pause) if kept else ():
                changes[covered.start] += kept
                changes[covered.stop] -= kept
    found: list[int] = []
    kept = 0
    for kernel, change in zip(cycle.kernels, changes, strict=False):
        kept += change
        found.append(kernel.held_bytes + kept)
    return found


def _broken(cycle: Cycle, residency: Residency, device_bytes: int) -> tuple[int, ...]:
    """Return the kernels that hold more than there is, by more than rounding."""
    held = held_bytes(cycle, residency)
    slack = len(cycle.values)
    return tuple(at for at, nbytes in enumerate(held) if nbytes > device_bytes + slack)


def _spread(kernels: Sequence[int], count: int) -> Sequence[int]:
    """Return ``count`` of ``kernels`` at the most, evenly."""
    if len(kernels) <= count:
        return kernels
    return [kernels[len(kernels) * at // count] for at in range(count)]


def _price(form: Formulation, duals: Duals, at: int) -> float:
    rows = form.rows.device[2 * at : 2 * at + 2]
    total = sum(-min(0.0, duals.at_most[row]) for row in rows)
    return total * form.unit_s / form.unit_bytes


def _pressure(form: Formulation, columns: Sequence[float], duals: Duals) -> Pressure:
    moved = {
        channel: sum(columns[column] for column, _ in flow.total) * form.unit_bytes
        for channel, flow in form.flows.items()
    }
    stalled = {
        resource: sum(
            -min(0.0, duals.at_most[each.row])
            * (each.free_s + sum(columns[column] for column in each.waits) * form.unit_s)
            for each in rates
        )
        for resource, rates in form.rows.rates.items()
    }
    device = sum(_price(form, duals, at) for at in range(len(form.samples)))
    host = sum(-min(0.0, duals.at_most[row]) for row in form.rows.host)
    return Pressure(moved, stalled, device, host * form.unit_s / form.unit_bytes)
