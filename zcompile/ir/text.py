"""The textual form of a schedule: ``parse(render(s)) == s``.

One line a value, a step or an output, so that two plans can be compared with ``diff``.
Empty lines and lines that begin with ``#`` mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import assert_never

from zcompile.ir.schedule import (
    Compute,
    Fetch,
    Offload,
    Release,
    Role,
    Schedule,
    Step,
    Tier,
    Update,
    Value,
    Wait,
)

_NAME = r"[^\s,()%]+"
_FIT_LINES = re.compile(rf"(?:{_NAME}\n)*{_NAME}")
_UNFIT = re.compile(r"[\s,()%:\\]")
_NUMBER = r"[0-9]+"
_REPEATS = r"( repeats)?"


def value_name(text: str) -> str:
    """Return ``text``, anything that a program calls a tensor, as a name of a value, or a part.

    Different texts give different names.  A colon is written otherwise too: it stands between
    a parameter and what belongs to it.

    >>> value_name("layers.0.weight"), value_name("two words"), value_name("w:grad")
    ('layers.0.weight', 'two\\\\u0020words', 'w\\\\u003agrad')
    """
    return _UNFIT.sub(lambda found: f"\\u{ord(found[0]):04x}", text) or "\\u"


def is_name(text: str) -> bool:
    """Say whether the text form can carry ``text`` as a name of a value or kernel.

    >>> is_name("layers.0.weight"), is_name("two words"), is_name("")
    (True, False, False)
    """
    return re.fullmatch(_NAME, text) is not None


def unfit_names(names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that `is_name` does not accept, in order."""
    found = list(names)
    # All at once first: a plan has thousands of names, and they nearly always fit.
    if _FIT_LINES.fullmatch("\n".join(found)):
        return []
    return [name for name in sorted(found) if not is_name(name)]


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"%{name}" for name in names)


def _kernel(word: str, step: Compute | Update, name: str) -> str:
    return (
        f"{word} {name}({_names(step.reads)}) -> ({_names(step.writes)})"
        f" transient {step.transient_bytes} B"
    )


def render_step(step: Step) -> str:
    """Return the line of ``step``.

    >>> render_step(Fetch(0, "w", Tier.NVME, offset=4096))
    'fetch %w <- nvme as t0 at 4096'
    """
    match step:
        case Compute(kernel):
            word = "recompute" if step.again else "compute"
            return _kernel(word, step, kernel) + (" repeats" if step.repeats else "")
        case Update(bucket):
            return _kernel("update", step, bucket)
        case Fetch(ticket, value, src, offset):
            place = "" if offset is None else f" at {offset}"
            return f"fetch %{value} <- {src} as t{ticket}{place}"
        case Wait(ticket, value):
            return f"wait %{value} for t{ticket}"
        case Offload(ticket, value, dst):
            return f"offload %{value} -> {dst} as t{ticket}"
        case Release(value, after):
            return f"release %{value}" + ("" if after is None else f" after t{after}")
        case _:
            assert_never(step)


def _render_value(value: Value) -> str:
    held = " held" if value.held else ""
    return f"value %{value.name} : {value.nbytes} B {value.role} @ {value.home}{held}"


def render(schedule: Schedule) -> str:
    """Return the text of ``schedule``; the same schedule gives the same bytes."""
    lines = [
        f"schedule {schedule.name}",
        *map(_render_value, schedule.values),
        *map(render_step, schedule.steps),
        *(f"output %{name}" for name in schedule.outputs),
        f"arena {schedule.arena_bytes} B" + (" vacated" if schedule.vacates else ""),
    ]
    return "\n".join(lines) + "\n"


@dataclass(slots=True)
class _Parts:
    """What the lines read so far have said."""

    name: str | None = None
    arena_bytes: int | None = None
    vacates: bool = False
    values: list[Value] = field(default_factory=list[Value])
    steps: list[Step] = field(default_factory=list[Step])
    outputs: list[str] = field(default_factory=list[str])

    def read_schedule(self, line: re.Match[str]) -> None:
        if self.name is not None:
            raise ValueError("a second schedule; a text holds one")
        self.name = line[1]

    def read_value(self, line: re.Match[str]) -> None:
        held = line[5] is not None
        self.values.append(Value(line[1], int(line[2]), Role(line[3]), Tier(line[4]), held))

    def read_kernel(self, line: re.Match[str]) -> None:
        name, reads, writes, transient = line[2], _split(line[3]), _split(line[4]), int(line[5])
        if line[1] == "update":
            self.steps.append(Update(name, reads, writes, transient))
        else:
            again, repeats = line[1] == "recompute", line[6] is not None
            self.steps.append(Compute(name, reads, writes, transient, repeats, again))

    def read_fetch(self, line: re.Match[str]) -> None:
        offset = None if line[4] is None else int(line[4])
        self.steps.append(Fetch(int(line[3]), line[1], Tier(line[2]), offset))

    def read_wait(self, line: re.Match[str]) -> None:
        self.steps.append(Wait(int(line[2]), line[1]))

    def read_offload(self, line: re.Match[str]) -> None:
        self.steps.append(Offload(int(line[3]), line[1], Tier(line[2])))

    def read_release(self, line: re.Match[str]) -> None:
        self.steps.append(Release(line[1], None if line[2] is None else int(line[2])))

    def read_output(self, line: re.Match[str]) -> None:
        self.outputs.append(line[1])

    def read_arena(self, line: re.Match[str]) -> None:
        if self.arena_bytes is not None:
            raise ValueError("a second arena; a schedule has one")
        self.arena_bytes = int(line[1])
        self.vacates = line[2] is not None


_LINES: dict[str, tuple[re.Pattern[str], Callable[[_Parts, re.Match[str]], None]]] = {
    word: (re.compile(form), read)
    for word, form, read in (
        ("schedule", rf"schedule ({_NAME})", _Parts.read_schedule),
        (
            "value",
            rf"value %({_NAME}) : ({_NUMBER}) B (\w+) @ (\w+)( held)?",
            _Parts.read_value,
        ),
        *(
            (
                word,
                rf"({word}) ({_NAME})\(([^()]*)\) -> \(([^()]*)\) transient ({_NUMBER}) B{end}",
                _Parts.read_kernel,
            )
            for word, end in (("compute", _REPEATS), ("recompute", _REPEATS), ("update", ""))
        ),
        (
            "fetch",
            rf"fetch %({_NAME}) <- (\w+) as t({_NUMBER})(?: at ({_NUMBER}))?",
            _Parts.read_fetch,
        ),
        ("wait", rf"wait %({_NAME}) for t({_NUMBER})", _Parts.read_wait),
        ("offload", rf"offload %({_NAME}) -> (\w+) as t({_NUMBER})", _Parts.read_offload),
        ("release", rf"release %({_NAME})(?: after t({_NUMBER}))?", _Parts.read_release),
        ("output", rf"output %({_NAME})", _Parts.read_output),
        ("arena", rf"arena ({_NUMBER}) B( vacated)?", _Parts.read_arena),
    )
}


def _split(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    parts = text.split(", ")
    for part in parts:
        if not (part.startswith("%") and is_name(part[1:])):
            raise ValueError(f"{part!r} is no value; values are written %name, %other")
    return tuple(part[1:] for part in parts)


def _read_line(parts: _Parts, line: str) -> None:
    word = line.split(" ", 1)[0]
    if word not in _LINES:
        raise ValueError(f"{word!r} begins no line; one of {', '.join(_LINES)} does")
    if parts.name is None and word != "schedule":
        raise ValueError("the first line must be 'schedule NAME'")
    form, read = _LINES[word]
    matched = form.fullmatch(line)
    if matched is None:
        raise ValueError(f"{line!r} does not have the form of a {word} line")
    read(parts, matched)


def parse(text: str) -> Schedule:
    """Return the schedule that ``text`` describes.

    Raises ``ValueError`` with the number of the first line that cannot be read.

    >>> parse("schedule s\\nfetch %w")
    Traceback (most recent call last):
    ValueError: line 2: 'fetch %w' does not have the form of a fetch line
    """
    parts = _Parts()
    number = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        try:
            _read_line(parts, line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    if parts.name is None:
        raise ValueError(f"line {number + 1}: the text ends before 'schedule NAME'")
    return Schedule(
        parts.name,
        tuple(parts.values),
        tuple(parts.steps),
        tuple(parts.outputs),
        parts.arena_bytes or 0,
        parts.vacates,
    )
