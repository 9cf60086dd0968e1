"""What a plan would take on a machine that need not be here, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zcompile.ir import Cost, Hardware, Schedule, price, render_step
from zcompile.passes.simulate import Simulated, StepTime, simulate
from zcompile.report.units import clipped

NUM_WAITS = 10
"""How many of the longest waits are listed."""

SHORTEST_S = 5e-7
"""Shorter waits are no waits: rounding makes them, and they would be shown as zero."""

LINE_WIDTH = 100


@dataclass(frozen=True, slots=True, repr=False)
class Estimate:
    """One run of a plan on the machine of that name: ``simulated`` has every step and copy.

    Printing it shows what of the time is exposed, and the steps that wait the longest.
    """

    machine: str
    schedule: Schedule
    simulated: Simulated

    @property
    def seconds(self) -> float:
        return self.simulated.end_s - self.simulated.start_s

    @property
    def exposed_s(self) -> float:
        """The seconds in which the device waits for copies, or shares the machine with them."""
        return self.simulated.exposed_s

    def waits(self) -> tuple[tuple[int, StepTime], ...]:
        """Return the steps that wait, with their numbers, the longest wait first."""
        steps = enumerate(self.simulated.steps)
        waiting = [(at, step) for at, step in steps if step.exposed_s >= SHORTEST_S]
        return tuple(sorted(waiting, key=lambda each: (-each[1].exposed_s, each[0])))

    def __str__(self) -> str:
        share = f" ({self.exposed_s / self.seconds:.0%})" if self.seconds else ""
        lines = [
            f"{self.schedule.name} on {self.machine}: {_milliseconds(self.seconds)}, "
            f"of it {_milliseconds(self.exposed_s)} exposed{share}"
        ]
        for at, step in self.waits()[:NUM_WAITS]:
            what = render_step(self.schedule.steps[at])
            line = f"{_milliseconds(step.exposed_s):>12}  step {at}: {what}"
            lines.append(clipped(line, LINE_WIDTH))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Estimate of {self.schedule.name} on {self.machine}: {self.seconds:.6f} s>"


def estimate(schedule: Schedule, costs: Mapping[str, Cost], hardware: Hardware) -> Estimate:
    """Return what ``schedule`` takes on ``hardware`` if its kernels keep to the roofline.

    Raises ``ValueError`` if an operation has no time there.
    """
    priced = price(costs, hardware)
    if priced.unknown:
        first = priced.unknown[0]
        raise ValueError(
            f"{schedule.name}: {first.kernel} has no time on {hardware.name}: "
            f"{first.operation}: {first.reason}; {len(priced.unknown)} operations have none"
        )
    (simulated,) = simulate([schedule], {schedule.name: priced.seconds}, hardware).graphs
    return Estimate(hardware.name, schedule, simulated)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3f} ms"
