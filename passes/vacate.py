"""Vacate: give the memory of the arena back slot by slot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from zcompile.ir import Schedule, Target


@dataclass(frozen=True, slots=True)
class Vacate:
    """Let every release give the slot of its copy back to the system.

    A static arena costs its size at every step, so a plan needs the fullest moment of the
    arena and the fullest of ordinary memory together, even where they are far apart.  With
    slots given back it needs no more than its fullest moment.  The price is that every
    fetch takes its memory anew, page by page: `run_within_budget` does so last.

    Needs:  nothing.
    Keeps:  the steps.
    Ends:   each step counts the copies it holds; passes that follow spend room step by step.
    """

    name: ClassVar[str] = "vacate"
    needs: ClassVar[frozenset[str]] = frozenset()
    gives: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, schedule: Schedule, target: Target) -> Schedule:  # noqa: ARG002 (Pass)
        return replace(schedule, vacates=True)
