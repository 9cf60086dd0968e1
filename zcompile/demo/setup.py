"""How the demo is to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zcompile.demo.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The job, the file of weights, and the budget; ``check`` asks for a plain run beside it.

    Without a ``swap_dir`` the homes are in a temporary folder in the current one.
    """

    job: Job
    weights: Path
    device_budget: int
    compute: Literal["inductor", "eager"]
    swap_dir: Path | None = None
    check: bool = False
