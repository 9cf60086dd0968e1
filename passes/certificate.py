"""Certificate: how fast an iteration can be at best, what stands in the way, what would help.

The bound is the largest of four: the time of the kernels; the bytes that have to move over each
channel and shared resource (`zcompile.passes.bound`); the path of kernels one after another, with
what has to arrive between two that do not fit beside each other; and the linear program, as
recomputed from its multipliers without trusting the solver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zcompile.ir import (
    Channel,
    Hardware,
    KernelSeconds,
    Schedule,
    Target,
)
from zcompile.passes.bound import Least, Load, Term, bound
from zcompile.passes.cycle import Cycle, cycle_of
from zcompile.passes.formulation import Question, swap_stalls
from zcompile.passes.relaxation import SAMPLES, Relaxation, relax

NAMES = {
    Channel.NVME_READ: "NVMe read",
    Channel.NVME_WRITE: "NVMe write",
    Channel.H2D: "host to device",
    Channel.D2H: "device to host",
}
"""What channels are called in sentences."""

NEGLIGIBLE = 1e-3
"""A lever that saves less than this share of the bound is not worth a word."""

STEP = 0.1
"""By how much a lever is moved: a tenth more of what there is."""


@dataclass(frozen=True, slots=True)
class Lever:
    """Something a user can change: a tenth more of ``what`` saves about ``saves_s``.

    It is an estimate from the multipliers of the program, right for small changes.
    """

    what: str
    saves_s: float

    def __str__(self) -> str:
        return f"{STEP:.0%} more {self.what} would save about {self.saves_s:.3g} s"


@dataclass(frozen=True, slots=True)
class Certificate(Least):
    """The least time of an iteration, and what would lower it.

    ``relaxation`` is the linear program's answer; ``None`` without a device budget, where
    nothing has to move.
    """

    levers: tuple[Lever, ...]
    rates: tuple[tuple[str, float], ...]
    relaxation: Relaxation | None

    def text(self, seconds: float | None = None) -> str:
        """Return the certificate for people, of a plan that takes ``seconds`` if there is one."""
        lines = [f"no plan takes less than {self.seconds:.4g} s an iteration"]
        if seconds is not None:
            lines = [f"{seconds:.4g} s an iteration; {lines[0]}: {self.gap(seconds):.1%} apart"]
        loads = "; ".join(self._say(each) for each in self.binding.loads if each.seconds > 0)
        lines.append(f"what decides is {self.binding.resource}: {loads or 'nothing runs'}")
        lines += [str(each) for each in self.levers] or ["no budget and no channel would help"]
        return "\n".join(lines)

    def _say(self, load: Load) -> str:
        rates = dict(self.rates)
        if load.nbytes and load.what in rates:
            return f"{load.what}, {load.nbytes / 1e9:.3g} GB at {rates[load.what] / 1e9:.3g} GB/s"
        if load.nbytes:
            return f"{load.what}, {load.nbytes / 1e9:.3g} GB in {load.seconds:.3g} s"
        return f"{load.what}, {load.seconds:.3g} s"


def certify(
    graphs: Sequence[Schedule],
    kernel_seconds: KernelSeconds,
    hardware: Hardware,
    target: Target,
    *,
    homes: bool = False,
    samples: int = SAMPLES,
    window_bytes: int | None = None,
) -> Certificate:
    """Return what no plan of an iteration of ``graphs`` can beat, and why.

    ``graphs`` are those of an iteration in order, the update among them and each as often as
    it runs, planned or not.  The reserved bytes of ``target`` are those of I/O buffers alone.
    With ``homes`` only plans count that keep no copy from one graph to the next.  Updates go in
    pieces of ``window_bytes``, if that is given.

    Raises ``ValueError`` if the time of a kernel or a link is missing, ``DoesNotFit`` if no
    plan keeps the budgets.
    """
    question = Question(
        cycle_of(graphs, kernel_seconds, window_bytes=window_bytes), hardware, target, homes
    )
    terms = list(bound(graphs, kernel_seconds, hardware, target).terms)
    if target.device_budget is None:
        return Certificate(_sorted(terms), (), _rates(hardware), None)
    relaxation = relax(question, samples)
    terms += [_path(question), _term(question, relaxation)]
    levers = tuple(_levers(question, relaxation))
    return Certificate(_sorted(terms), levers, _rates(hardware), relaxation)


def _sorted(terms: Sequence[Term]) -> tuple[Term, ...]:
    return tuple(sorted(terms, key=lambda each: (-each.seconds, each.resource)))


def _rates(hardware: Hardware) -> tuple[tuple[str, float], ...]:
    return tuple((NAMES[each], link.bandwidth_bytes_per_s) for each, link in hardware.links.items())


def _path(question: Question) -> Term:
    """Return the kernels in their order, with what arrives between two of them at the least."""
    kernel_s, swap_s = question.cycle.kernel_s, sum(swap_stalls(question))
    loads = (Load("kernels", 0, kernel_s), Load("copies between two kernels", 0, swap_s))
    return Term("the path of kernels", kernel_s + swap_s, loads)


def _term(question: Question, relaxation: Relaxation) -> Term:
    """Return the linear program's bound, with the resource that decides about it."""
    bound_s = relaxation.seconds
    pressure = relaxation.pressure
    kernel_s = question.cycle.kernel_s
    busiest = max(pressure.stalled_s, key=lambda name: (pressure.stalled_s[name], name), default="")
    if not busiest or pressure.stalled_s[busiest] <= NEGLIGIBLE * kernel_s:
        return Term("kernels", bound_s, _kernel_loads(question.cycle))
    loads: list[Load] = []
    for channel, nbytes in pressure.channel_bytes.items():
        link = question.hardware.links[channel]
        share = dict(link.uses).get(busiest, 1.0 if busiest == str(channel) else 0.0)
        if share and nbytes >= 1:
            seconds = share * nbytes / link.bandwidth_bytes_per_s
            loads.append(Load(NAMES[channel], round(nbytes), seconds))
    return Term(_resource_name(busiest), bound_s, tuple(loads))


def _resource_name(resource: str) -> str:
    return NAMES[Channel(resource)] if resource in list(Channel) else f"the {resource}"


def _kernel_loads(cycle: Cycle) -> tuple[Load, ...]:
    found: dict[str, float] = {}
    for kernel in cycle.kernels:
        found[kernel.activity] = found.get(kernel.activity, 0.0) + kernel.seconds
    return tuple(Load(activity, 0, seconds) for activity, seconds in found.items())


def _levers(question: Question, relaxation: Relaxation) -> Iterator[Lever]:
    """Yield what would help, the most helpful first."""
    pressure, target = relaxation.pressure, question.target
    found = [
        Lever(f"of {_resource_name(resource)}", STEP * seconds)
        for resource, seconds in pressure.stalled_s.items()
    ]
    for option, budget, per_byte in (
        ("device_budget", target.device_budget, pressure.device_s_per_byte),
        ("host_budget", target.host_budget, pressure.host_s_per_byte),
    ):
        found.append(Lever(option, STEP * (budget or 0) * per_byte))
    # The first bytes save the most, so a tenth of a budget never saves all of the stalls.
    stall_s = max(0.0, relaxation.seconds - question.cycle.kernel_s)
    for lever in sorted(found, key=lambda each: (-each.saves_s, each.what)):
        saves_s = min(lever.saves_s, stall_s)
        if saves_s > NEGLIGIBLE * relaxation.seconds:
            yield Lever(lever.what, saves_s)
