"""A value's life in one plan: where it rests and why, when it moves and why then.

Note [Why a fetch is where it is].  `Prefetch` hoists a fetch kernel by kernel until something
stops it.  What stopped it is read off the plan: the distance that the pass allows, the fetch
before it in the same queue, a release of the same value, or the bytes that are ahead of need.
If it was none of these, it was the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from zcompile.errors import size_text
from zcompile.ir import (
    Compute,
    Fetch,
    Kernel,
    Offload,
    Release,
    Role,
    Schedule,
    Tier,
    Update,
    Value,
    Wait,
    kernel_name,
    operands,
)
from zcompile.passes.base import Stage
from zcompile.passes.deadline import Deadline
from zcompile.passes.pipeline import Rejected, parse_pipeline
from zcompile.passes.placement import Verdict
from zcompile.passes.prefetch import Prefetch
from zcompile.report.units import mebibytes

NUM_NEAR = 3
"""How many names an unknown one is answered with."""

MAX_EVENTS = 40
"""How many events are printed."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What is known of a model's placement: all managed values, and why each is where it is.

    ``graphs`` gives for each value the graphs that touch it.  ``spare_bytes`` is what the
    fullest plan leaves of the device budget, ``None`` without a budget.
    """

    values: Mapping[str, Value]
    verdicts: Mapping[str, Verdict]
    graphs: Mapping[str, tuple[str, ...]]
    spare_bytes: int | None


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens to a value: at which step of the plan, what, and why then.

    ``exposed_s`` is how long the step waits for a copy of it on the machine that was asked
    about; ``None`` if there was none, or the step waits for nothing.
    """

    step: int
    what: str
    why: str
    exposed_s: float | None = None

    def __str__(self) -> str:
        exposed = "" if self.exposed_s is None else f"; {self.exposed_s * 1000:.3f} ms exposed"
        return f"{self.step:5d}  {self.what}: {self.why}{exposed}"


@dataclass(frozen=True, slots=True)
class Life:
    """What happens to one value in one plan; printing it tells the story."""

    value: Value
    graph: str
    home: Tier
    why: str
    rejected: tuple[str, ...]
    events: tuple[Event, ...]
    graphs: tuple[str, ...]

    @property
    def exposed_s(self) -> float:
        """How long steps wait for copies of it, where a machine was named."""
        return sum(each.exposed_s or 0.0 for each in self.events)

    def __str__(self) -> str:
        size = f"{self.value.nbytes} B of {self.value.role}"
        lines = [f"{self.value.name}: {size}, at home on {self.home}: {self.why}"]
        lines += [f"rejected: {each}" for each in self.rejected]
        lines.append(f"in {self.graph}:" if self.events else f"no step of {self.graph} touches it")
        lines += map(str, self.events[:MAX_EVENTS])
        if len(self.events) > MAX_EVENTS:
            lines.append(f"  ...  {len(self.events) - MAX_EVENTS} more")
        others = [name for name in self.graphs if name != self.graph]
        if others:
            lines.append(f"also in {', '.join(others)}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Told:
    """What a life is told from: a plan, how it came about, and the placement behind it.

    ``exposed_s`` gives the seconds that each step waits on some machine; empty for none.
    """

    schedule: Schedule
    stages: tuple[Stage, ...]
    pipeline: str
    rejected: tuple[Rejected, ...]
    placed: Placed
    exposed_s: Sequence[float] = ()

    def life(self, name: str) -> Life:
        """Return the life of the value called ``name``; ``ValueError`` if there is none.

        As in the text of a schedule the name may begin with ``%``.
        """
        name = name.removeprefix("%")
        own = {each.name: each for each in self.schedule.values}
        value = own.get(name) or self.placed.values.get(name)
        if value is None:
            raise ValueError(_unknown(name, self.schedule.name, [*own, *self.placed.values]))
        verdict = self.placed.verdicts.get(name)
        home = verdict.tier if verdict else value.home
        why = verdict.reason if verdict else _why_here(value)
        events = tuple(_Story(self, value).events()) if name in own else ()
        rejected = tuple(self._rejections(value, home)) if verdict else ()
        return Life(
            value, self.schedule.name, home, why, rejected, events, self.placed.graphs.get(name, ())
        )

    def _rejections(self, value: Value, home: Tier) -> Iterator[str]:
        if home is not Tier.DEVICE and self.placed.spare_bytes is not None:
            yield (
                f"device, where {size_text(value.nbytes)} would lie {_how_long(value)}: the "
                f"fullest plan leaves {size_text(max(0, self.placed.spare_bytes))}"
            )
        for each in self.rejected:
            yield f"the plan of {each.pipeline}: it needs {size_text(each.peak_bytes)}"


def _unknown(name: str, graph: str, known: Sequence[str]) -> str:
    known = list(dict.fromkeys(known))  # a value of the graph has been placed as well
    near = get_close_matches(name, known, NUM_NEAR, cutoff=0.5)
    few = known[:NUM_NEAR]
    remedy = f"did you mean {' or '.join(near)}?" if near else f"there is {', '.join(few)} ..."
    return f"{graph}: no value is called {name!r}; {remedy}"


def _why_here(value: Value) -> str:
    if value.role is Role.ACTIVATION:
        return "activations stay where they are made"
    if value.held:
        return "somebody outside holds it"
    return "it is made, used and freed on the device"


def _how_long(value: Value) -> str:
    if value.role is Role.SAVED:
        return "until backward"
    return "twice, beside that of the last backward" if value.role is Role.GRADIENT else "for good"


class _Story:
    """Tells of one value that is in the plan."""

    def __init__(self, told: Told, value: Value) -> None:
        self._told = told
        self._steps = told.schedule.steps
        self._value = value
        self._kernels = _kernels_before(told.schedule)
        self._names = [kernel_name(s) for s in self._steps if isinstance(s, Compute | Update)]

    def events(self) -> Iterator[Event]:
        """Yield what happens to the value, in the order of the steps."""
        name = self._value.name
        last = self._last_use()
        for at, step in enumerate(self._steps):
            match step:
                case Fetch(ticket, value, src) if value == name:
                    yield Event(at, f"fetched from {src}", self._why_fetched(at, ticket))
                case Wait(ticket, value) if value == name:
                    why = f"{self._next_kernel(at)} reads it"
                    yield Event(at, "waited for", why, self._exposed(at))
                case Offload(_, value, dst) if value == name:
                    why = f"{self._kernel_before(at)} has changed it"
                    yield Event(at, f"written to {dst}", why)
                case Release(value, after) if value == name:
                    yield self._released(at, after)
                case Compute() | Update() if name in operands(step):
                    verb = _verb(step, name)
                    why = "its last use here" if at == last else self._why_kept(at)
                    yield Event(at, f"{verb} by {kernel_name(step)}", why)
                case _:
                    pass

    def _last_use(self) -> int:
        name = self._value.name
        kernels = (
            at
            for at, step in enumerate(self._steps)
            if isinstance(step, Compute | Update) and name in operands(step)
        )
        return max(kernels, default=-1)

    def _released(self, at: int, after: int | None) -> Event:
        if after is None:
            return Event(at, "released", "a clean copy rests at home")
        copied = next(
            i for i, s in enumerate(self._steps) if isinstance(s, Offload) and s.ticket == after
        )
        late = self._kernels[at] - self._kernels[copied]
        why = f"its copy out, begun at step {copied}, must have landed"
        if late:
            why += f"; put off by {_counted(late)}, so that it overlaps with them"
        return Event(at, "released", why, self._exposed(at))

    def _why_kept(self, at: int) -> str:
        """Say what becomes of the value after a use that is not its last."""
        name = self._value.name
        if self._value.home is Tier.DEVICE:
            return "it stays: the device is its home, or it is used again"
        for step in self._steps[at + 1 :]:
            if isinstance(step, Release) and step.value == name:
                return "it is released before its next use: the budget has no room for it between"
            if isinstance(step, Compute | Update) and name in operands(step):
                return "it is kept for its next use: there is room"
        return "it stays"

    def _why_fetched(self, at: int, ticket: int) -> str:
        wait = next(
            i for i, s in enumerate(self._steps) if isinstance(s, Wait) and s.ticket == ticket
        )
        ahead = self._kernels[wait] - self._kernels[at]
        if not ahead:
            return f"right before {self._next_kernel(wait)}: {self._stop(at, wait, ahead)}"
        return f"{_counted(ahead)} before {self._next_kernel(wait)}: {self._stop(at, wait, ahead)}"

    def _stop(self, at: int, wait: int, ahead: int) -> str:
        """Say why the fetch at ``at`` is no earlier: see Note [Why a fetch is where it is]."""
        prefetch = _prefetch_of(self._told.pipeline)
        if prefetch is None:
            return _stop_of(self._told.pipeline)
        if ahead >= prefetch.distance_kernels:
            return f"as far ahead as distance_kernels={prefetch.distance_kernels} allows"
        gap = self._kernels[at]
        if not gap:
            return "the graph begins here"
        before = self._steps[:at]
        fetch = self._steps[at]
        assert isinstance(fetch, Fetch)
        for i in range(at - 1, -1, -1):
            step = before[i]
            if self._kernels[i] < gap:
                break
            if isinstance(step, Release) and step.value == self._value.name:
                return "its last copy is released here"
            if isinstance(step, Fetch) and step.src is fetch.src:
                return f"it queues behind the fetch of {step.value} from the same tier"
        coming = self._coming_bytes(gap - 1, wait)
        if coming >= prefetch.distance_bytes:
            return f"{mebibytes(coming)} are on their way already, distance_bytes allows no more"
        return f"the budget has no room for it while {self._names[gap - 1]} runs"

    def _coming_bytes(self, gap: int, wait: int) -> int:
        """Return what is fetched before ``gap`` and waited for after it, ahead of this value."""
        sizes = {each.name: each.nbytes for each in self._told.schedule.values}
        waits = {s.ticket: i for i, s in enumerate(self._steps) if isinstance(s, Wait)}
        return sum(
            sizes[step.value]
            for i, step in enumerate(self._steps)
            if isinstance(step, Fetch)
            and self._kernels[i] <= gap < self._kernels[waits[step.ticket]]
            and waits[step.ticket] < wait
        )

    def _next_kernel(self, at: int) -> str:
        return self._names[self._kernels[at]]

    def _kernel_before(self, at: int) -> str:
        return self._names[self._kernels[at] - 1]

    def _exposed(self, at: int) -> float | None:
        return self._told.exposed_s[at] if self._told.exposed_s else None


def _verb(kernel: Kernel, name: str) -> str:
    if name not in kernel.writes:
        return "read"
    again = isinstance(kernel, Compute) and kernel.again
    return "made again" if again else "made or changed"


def _kernels_before(schedule: Schedule) -> list[int]:
    """Return for each step how many kernels come before it."""
    found: list[int] = []
    passed = 0
    for step in schedule.steps:
        found.append(passed)
        passed += isinstance(step, Compute | Update)
    return found


def _prefetch_of(pipeline: str) -> Prefetch | None:
    return next((e for e in parse_pipeline(pipeline) if isinstance(e, Prefetch)), None)


def _stop_of(pipeline: str) -> str:
    """Say why a fetch is where it is in a plan that `Prefetch` had no part in."""
    if any(isinstance(each, Deadline) for each in parse_pipeline(pipeline)):
        return "as late as its channel still hides it, or else as early as memory allows"
    return f"where {pipeline} puts it"


def _counted(count: int) -> str:
    return f"{count} kernel{'' if count == 1 else 's'}"
