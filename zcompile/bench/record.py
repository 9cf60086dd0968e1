"""What was measured, as JSON and in the user's cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from zcompile.bench.figure import Measured
from zcompile.ir import Hardware
from zcompile.machines import render_machine
from zcompile.machines.here import here_path, results_path, write_private
from zcompile.version import __version__


@dataclass(frozen=True, slots=True)
class Record:
    """One run: when, every figure, and the target made of them."""

    when: datetime
    quick: bool
    measured: Measured
    hardware: Hardware
    others_processors: float
    """How many processors others kept busy meanwhile."""

    def as_json(self) -> dict[str, object]:
        """Return it as what JSON has; ``hardware`` is of the form of `zcompile.machines`."""
        return {
            "zinf": __version__,
            "when": self.when.isoformat(timespec="seconds"),
            "quick": self.quick,
            "others_processors": round(self.others_processors, 3),
            "figures": [asdict(each) for each in self.measured.figures],
            "hardware": json.loads(render_machine(self.hardware)),
        }

    def save(self, env: Mapping[str, str]) -> None:
        """Write it where planning and ``zinf doctor`` find it; only the owner may read it.

        Raises ``ValueError`` where the cache cannot be written.
        """
        write_private(results_path(env), json.dumps(self.as_json(), indent=2) + "\n")
        write_private(here_path(env), render_machine(self.hardware))
