"""What is trained: the same for the run within a budget and for the plain one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """So many steps over a few batches of text, which come round again and again.

    ``threads`` compute; the number is part of the job, since sums depend on it in the last bit.
    """

    steps: int = 12
    batch: int = 1
    sequence: int = 128
    num_batches: int = 4
    learning_rate: float = 1e-4
    threads: int = 1

    @property
    def num_tokens(self) -> int:
        """How many tokens one step learns from."""
        return self.batch * self.sequence

    def to_json(self) -> str:
        """Return the job as text, for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that ``to_json`` wrote.

        >>> Job.from_json(Job(steps=3).to_json()) == Job(steps=3)
        True
        """
        return cls(**json.loads(text))
