"""What was measured: figures with their spread, unit and limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from zcompile.bench.sampling import Samples, Spread


class Unit(StrEnum):
    """The unit of a figure; all are of the SI, without prefix."""

    BYTES_PER_S = "B/s"
    FLOPS_PER_S = "flop/s"
    SECONDS = "s"
    SECONDS_PER_PARAMETER = "s/parameter"
    PROCESSORS = "processors"
    PART = "part of what each reaches alone"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: ``group`` and ``name`` say of what, ``threads`` with how many torch computed.

    ``of_limit`` is the part of its ``limit``, another figure of the group, that it reaches,
    round by round: 1 is all of it.
    """

    group: str
    name: str
    threads: int | None
    unit: Unit
    spread: Spread
    limit: str | None = None
    of_limit: Spread | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """All figures of one run."""

    figures: tuple[Figure, ...]

    def median(self, group: str, name: str, threads: int | None = None) -> float:
        """Return the median of a figure; with the most threads where they are not given.

        Raises ``KeyError`` if it was not measured.
        """
        found = [
            each
            for each in self.figures
            if (each.group, each.name) == (group, name) and threads in (None, each.threads)
        ]
        if not found:
            raise KeyError(f"{group}: {name}")
        return max(found, key=lambda each: each.threads or 0).spread.median

    def names(self, group: str) -> tuple[str, ...]:
        """Return the names of the figures of a group, each once."""
        return tuple(dict.fromkeys(each.name for each in self.figures if each.group == group))


@dataclass(frozen=True, slots=True)
class Scale:
    """How what a run tells, mostly seconds, becomes a figure: so much is done in one run."""

    unit: Unit
    amount: float

    def figure(self, seconds: float) -> float:
        """Return an amount a second, or seconds a piece."""
        if self.unit in (Unit.BYTES_PER_S, Unit.FLOPS_PER_S):
            return self.amount / seconds
        return seconds / self.amount


def figures_of(
    group: str,
    threads: int | None,
    samples: Samples,
    scale_of: Callable[[str], Scale],
    limits: Mapping[str, str] | None = None,
) -> Iterator[Figure]:
    """Yield a figure for each name in ``samples``.

    ``limits`` names, for a figure, the one of the same samples that it cannot pass: what both
    take for the same amount is compared round by round.
    """
    for name, seconds in samples.items():
        scale = scale_of(name)
        spread = Spread.of([scale.figure(each) for each in seconds])
        limit = (limits or {}).get(name)
        of_limit = None
        if limit is not None:
            other = scale_of(limit)
            ratios = [
                (theirs / other.amount) / (ours / scale.amount)
                for ours, theirs in zip(seconds, samples[limit], strict=True)
            ]
            of_limit = Spread.of(ratios)
        yield Figure(group, name, threads, scale.unit, spread, limit, of_limit)
