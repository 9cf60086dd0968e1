"""How much to measure."""

from __future__ import annotations

from dataclasses import dataclass

from zcompile.bench.sampling import Pace


@dataclass(frozen=True, slots=True)
class Effort:
    """Sizes and times.

    Three arrays of ``array_bytes`` are there at once, or 16 bytes for each of
    ``num_parameters``, or ``file_bytes`` of memory beside a file of that size and a slab of
    growth.  None of it comes near 1 GiB.  ``scale`` multiplies the seconds of every stage.
    """

    array_bytes: int
    num_parameters: int
    file_bytes: int
    matrix_rows: int
    scale: float
    least_rounds: int

    def pace(self, seconds: float) -> Pace:
        return Pace(seconds * self.scale, self.least_rounds)


WHOLE = Effort(
    array_bytes=128 << 20,
    num_parameters=16 << 20,
    file_bytes=256 << 20,
    matrix_rows=1024,
    scale=1.0,
    least_rounds=5,
)
"""What is done unless told otherwise: about a minute."""

QUICK = Effort(
    array_bytes=64 << 20,
    num_parameters=8 << 20,
    file_bytes=64 << 20,
    matrix_rows=512,
    scale=0.12,
    least_rounds=3,
)
"""A look, in some twenty seconds."""
