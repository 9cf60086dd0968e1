"""How fast kernels read and write memory, and how fast it is copied between tiers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from zcompile.bench.effort import Effort
from zcompile.bench.figure import Figure, Scale, Unit, figures_of
from zcompile.bench.sampling import alternate, computing_with, timed
from zcompile.runtime.arena import Arena
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.transfers import Transfers

MEMORY, COPIES = "memory", "copies"
TRIAD = "triad"
COPY_BYTES = 32 << 20
SMALL_BYTES = 4096


def measure_memory(effort: Effort, threads: int) -> Iterator[Figure]:
    """Yield the rates of reading, writing, and of both: two arrays in, one out.

    Bytes are those of the operands, as kernels are priced by them: what the processor reads
    before it writes is not counted.
    """
    numel = effort.array_bytes // 4
    one, two, out = (
        torch.ones(numel, dtype=torch.float32, device="cpu").fill_(number) for number in range(3)
    )
    runs = {
        "read": timed(lambda: torch.sum(one)),
        "write": timed(lambda: out.fill_(1.0)),
        TRIAD: timed(lambda: torch.add(one, two, alpha=3.0, out=out)),
    }
    arrays = {"read": 1, "write": 1, TRIAD: 3}
    with computing_with(threads):
        samples = alternate(runs, effort.pace(4))

    def scale_of(name: str) -> Scale:
        return Scale(Unit.BYTES_PER_S, 4 * numel * arrays[name])

    yield from figures_of(MEMORY, threads, samples, scale_of)


def measure_copies(effort: Effort) -> Iterator[Figure]:
    """Yield the rate of a large copy of memory to memory each way, and the time of a small one."""
    nbytes = min(COPY_BYTES, effort.array_bytes)
    home, device = Arena(nbytes), Arena(nbytes)
    transfers = Transfers(None, Ledger())
    into = {"source": home.address, "destination": device.address}
    out = {"source": device.address, "destination": home.address}
    try:
        rates = alternate(
            {
                "in": timed(lambda: transfers.copy_in(**into, nbytes=nbytes).wait()),
                "out": timed(lambda: transfers.copy_out(**out, nbytes=nbytes).wait()),
            },
            effort.pace(2),
        )
        small = alternate(
            {"latency": timed(lambda: transfers.copy_in(**into, nbytes=SMALL_BYTES).wait(), 20)},
            effort.pace(0.5),
        )
    finally:
        transfers.close()
    yield from figures_of(COPIES, None, rates, lambda _: Scale(Unit.BYTES_PER_S, nbytes))
    yield from figures_of(COPIES, None, small, lambda _: Scale(Unit.SECONDS, 1))
