"""One thing that was looked at, and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class Status(StrEnum):
    """How good it is.

    ``NOTE``: works, and could be otherwise.  ``WARNING``: something is slower, smaller or
    missing, and there is a remedy.
    """

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """What ``says`` about ``subject``; every warning comes with its ``remedy``."""

    section: str
    subject: str
    status: Status
    says: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        assert (self.status is Status.WARNING) <= (self.remedy is not None), self


@dataclass(frozen=True, slots=True)
class Section:
    """Makes the findings of one section, of each kind by one method."""

    name: str

    def ok(self, subject: str, says: str) -> Finding:
        return Finding(self.name, subject, Status.OK, says)

    def note(self, subject: str, says: str, remedy: str | None = None) -> Finding:
        return Finding(self.name, subject, Status.NOTE, says, remedy)

    def warning(self, subject: str, says: str, remedy: str) -> Finding:
        return Finding(self.name, subject, Status.WARNING, says, remedy)


def warnings_among(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that are warnings."""
    return tuple(each for each in findings if each.status is Status.WARNING)


def as_json(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the findings as what JSON has: text, numbers, lists and objects."""
    return {
        "num_warnings": len(warnings_among(findings)),
        "findings": [asdict(each) for each in findings],
    }
