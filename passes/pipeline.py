"""The pipeline: which passes run, in which order, with which options."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace

from zcompile.ir import Rule, Schedule, Target, peak_bytes, verify
from zcompile.passes.base import OFFLOADED, PACKED, PLACED, STREAMED, Pass, Runs, Stage
from zcompile.passes.deadline import Deadline
from zcompile.passes.defer import Defer
from zcompile.passes.keep import Keep
from zcompile.passes.lean import static_lean_peak
from zcompile.passes.offload import Offload
from zcompile.passes.pack import Pack
from zcompile.passes.place import Place
from zcompile.passes.prefetch import Prefetch
from zcompile.passes.simulate import simulate
from zcompile.passes.stream import Stream
from zcompile.passes.vacate import Vacate

Pipeline = tuple[Pass, ...]

PIPELINE: Pipeline = (Place(), Stream(), Offload(), Keep(), Defer(), Prefetch(), Pack())
"""What runs unless the user says otherwise; as a last resort with `Vacate` in it."""

TIMED: tuple[Pipeline, ...] = (
    PIPELINE,
    (Place(), Stream(), Offload(), Deadline(), Pack()),
    (Place(), Stream(), Offload(), Keep(spare_percent=90), Deadline(), Pack()),
    (Place(), Stream(), Offload(), Keep(), Deadline(), Pack()),
)
"""What is tried where times are known; `PIPELINE` among it, so the result is never slower."""

COMPLETE = (PLACED, STREAMED, OFFLOADED, PACKED)
"""What must hold of a plan that is to be run."""

RUNGS = (100, 90, 75, 50, 25, 0)
"""How much of their spare bytes the passes may spend, in percent, try by try.

They spend as if the arena could be filled without holes.  Where packing leaves holes and
so breaks the budget, less is spent.  At 0 they are left out: the lean plan has no holes.
"""

VACATING_RUNGS = (100, 0)
"""The same for an arena that is vacated: there a hole takes no memory."""

_PASSES: dict[str, Pass] = {each.name: each for each in (*PIPELINE, Deadline(), Vacate())}
_BETWEEN_ENTRIES = re.compile(r",(?![^{]*\})")
_ENTRY = re.compile(r"(\w+)(?:\{(.*)\})?")
_OPTION = re.compile(r"(\w+)=([0-9]+)")


def render_pipeline(passes: Sequence[Pass]) -> str:
    """Return the text form of ``passes``, with all their options.

    >>> render_pipeline([Stream(), Defer(kernels=1)])
    'stream,defer{kernels=1,spare_percent=50}'
    """
    return ",".join(map(_render_pass, passes))


def _render_pass(each: Pass) -> str:
    options = ",".join(f"{field.name}={getattr(each, field.name)}" for field in fields(each))
    return f"{each.name}{{{options}}}" if options else each.name


def parse_pipeline(text: str) -> Pipeline:
    """Return the passes that ``text`` names; an option that is not given has its default.

    Raises ``ValueError`` for a pass or option that is unknown or has no legal value.

    >>> parse_pipeline("stream, defer{kernels=1}")
    (Stream(), Defer(kernels=1, spare_percent=50))
    """
    return tuple(_parse_pass(entry.strip()) for entry in _BETWEEN_ENTRIES.split(text))


def _parse_pass(entry: str) -> Pass:
    matched = _ENTRY.fullmatch(entry)
    if matched is None or matched[1] not in _PASSES:
        raise ValueError(f"{entry!r} is no pass; the passes are {', '.join(_PASSES)}")
    default = _PASSES[matched[1]]
    known = [field.name for field in fields(default)]
    options: dict[str, int] = {}
    for option in (matched[2] or "").split(",") if matched[2] else ():
        parts = _OPTION.fullmatch(option.strip())
        if parts is None or parts[1] not in known:
            have = ", ".join(f"{name}=NUMBER" for name in known) or "nothing"
            raise ValueError(f"{default.name}: {option.strip()!r} is no option; it takes {have}")
        options[parts[1]] = int(parts[2])
    return replace(default, **options)


def without(passes: Sequence[Pass], names: Collection[str]) -> Pipeline:
    """Return ``passes`` without those called ``names``, which must be among them."""
    present = [each.name for each in passes]
    for name in names:
        if name not in present:
            raise ValueError(f"{name!r} is no pass to skip; there is {', '.join(present)}")
    return tuple(each for each in passes if each.name not in names)


def check_order(passes: Sequence[Pass]) -> None:
    """Raise ``ValueError`` unless every pass finds what it needs and the plan is complete."""
    facts: set[str] = set()
    for each in passes:
        if PACKED in facts:
            raise ValueError(f"{each.name} comes after the arena was packed; nothing may")
        if missing := sorted(each.needs - facts):
            raise ValueError(f"{each.name} needs {missing}, which no earlier pass gives")
        facts |= each.gives
    if missing := [fact for fact in COMPLETE if fact not in facts]:
        raise ValueError(f"the pipeline ends and no pass gives {missing}")


def needs_times(passes: Sequence[Pass]) -> bool:
    """Say whether some of ``passes`` keep time, and so need a machine."""
    return any(isinstance(each, Deadline) for each in passes)


def build_pipeline(text: str | None = None, skip: Collection[str] = ()) -> Pipeline:
    """Return the pipeline of ``text``, by default `PIPELINE`, without the passes in ``skip``.

    Raises ``ValueError`` if the text cannot be read or what is left cannot run.
    """
    passes = without(PIPELINE if text is None else parse_pipeline(text), skip)
    check_order(passes)
    return passes


@dataclass(frozen=True, slots=True)
class Rejected:
    """A pipeline, in text, whose plan broke the device budget, and the bytes it needed."""

    pipeline: str
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Tried:
    """A pipeline, in text, whose plan keeps the budget, and the seconds it takes by simulation."""

    pipeline: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule ready to run: the pipeline that made it, every stage, and failed tries.

    Where times are known, ``tried`` are all plans that keep the budget; this is the fastest,
    and takes ``seconds``.
    """

    pipeline: str
    stages: tuple[Stage, ...]
    rejected: tuple[Rejected, ...]
    tried: tuple[Tried, ...] = ()
    seconds: float | None = None

    @property
    def schedule(self) -> Schedule:
        return self.stages[-1].after


def ladder(passes: Sequence[Pass]) -> tuple[Pipeline, ...]:
    """Return ``passes`` as they are and ever leaner, at last vacating, without repetition."""
    vacating = _vacating(passes)
    return tuple(
        dict.fromkeys(
            (
                *(_leaner(passes, percent) for percent in RUNGS),
                *(_leaner(vacating, percent) for percent in VACATING_RUNGS),
            )
        )
    )


def _vacates(passes: Sequence[Pass]) -> bool:
    return any(isinstance(each, Vacate) for each in passes)


def _vacating(passes: Sequence[Pass]) -> Pipeline:
    """Return ``passes`` with `Vacate` among them, before any pass that looks for room."""
    if _vacates(passes):
        return tuple(passes)
    at = 1 + next(at for at, each in enumerate(passes) if OFFLOADED in each.gives)
    return (*passes[:at], Vacate(), *passes[at:])


def _leaner(passes: Sequence[Pass], percent: int) -> Pipeline:
    found: list[Pass] = []
    for each in passes:
        if not isinstance(each, Keep | Defer | Prefetch | Deadline):
            found.append(each)
        elif percent > 0:
            found.append(replace(each, spare_percent=each.spare_percent * percent // 100))
    return tuple(found)


def run_within_budget(passes: Sequence[Pass], schedule: Schedule, target: Target) -> Plan:
    """Plan ``schedule``, as captured, by the first pipeline of the ladder that fits.

    The device budget is kept whenever the lean plan keeps it.  Raises ``ScheduleError``
    (rule V4) if it does not, or if the placement breaks the host budget.
    """
    return _within_budget(passes, Runs(schedule, target))


def _within_budget(passes: Sequence[Pass], runs: Runs) -> Plan:
    check_order(passes)
    target, rungs = runs.target, ladder(passes)
    rejected: list[Rejected] = []
    if target.device_budget is not None and (
        static_lean_peak(runs.schedule, target) > target.device_budget
    ):
        # No static plan needs less than the lean one: nothing would come of trying them.
        rungs = tuple(filter(_vacates, rungs))
    for pipeline in rungs:
        stages = runs.of(pipeline)
        planned = stages[-1].after
        peak = peak_bytes(planned, target)
        fits = target.device_budget is None or peak <= target.device_budget
        if fits or pipeline is rungs[-1]:
            if not fits or target.host_budget is not None:
                # Everything else was checked when the last pass had run.
                verify(planned, target, rules={Rule.BUDGET})
            return Plan(render_pipeline(pipeline), stages, tuple(rejected))
        rejected.append(Rejected(render_pipeline(pipeline), peak))
    raise AssertionError("every ladder has a last rung")


def run_fastest(pipelines: Sequence[Pipeline], schedule: Schedule, target: Target) -> Plan:
    """Plan ``schedule`` by each of ``pipelines``; return the plan that simulation finds fastest.

    Of equally fast ones the first.  The target must have hardware and the seconds of every
    kernel: ``ValueError`` if it has not.  Otherwise like `run_within_budget`.
    """
    if target.hardware is None:
        raise ValueError("the target has no hardware to compare plans by")
    runs = Runs(schedule, target)
    plans = [_within_budget(each, runs) for each in pipelines]
    tried = tuple(
        Tried(
            each.pipeline,
            simulate([each.schedule], target.kernel_seconds, target.hardware).seconds,
        )
        for each in plans
    )
    at = min(range(len(plans)), key=lambda number: (tried[number].seconds, number))
    return replace(plans[at], tried=tried, seconds=tried[at].seconds)
