"""How fast kernels compute, and what starting one takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from zcompile.bench.effort import Effort
from zcompile.bench.figure import Figure, Scale, Unit, figures_of
from zcompile.bench.sampling import alternate, computing_with, timed
from zcompile.ir import Kind

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LAUNCH = "launch"
_PATIENCE_S = 0.02
"""Where a kernel of the smallest size takes longer than this, no larger one is tried."""

_LEAST_ROWS = 128


@dataclass(frozen=True, slots=True)
class _Kernel:
    call: Callable[[], object]
    flops: int


def measure_kernels(effort: Effort, threads: int, kind: Kind) -> Iterator[Figure]:
    """Yield the rate of kernels of ``kind`` for each dtype; the group is the kind's name."""
    with computing_with(threads), torch.no_grad():
        kernels = {_name(dtype): _sized(kind, dtype, effort.matrix_rows) for dtype in DTYPES}
        runs = {name: timed(kernel.call) for name, kernel in kernels.items()}
        samples = alternate(runs, effort.pace(4))

    def scale_of(name: str) -> Scale:
        return Scale(Unit.FLOPS_PER_S, kernels[name].flops)

    yield from figures_of(kind.value, threads, samples, scale_of)


def measure_launch(effort: Effort) -> Iterator[Figure]:
    """Yield the seconds that an operation takes which has nothing to do."""
    one, out = (torch.ones(1, dtype=torch.float32, device="cpu") for _ in range(2))
    runs = {"one operation": timed(lambda: torch.add(one, one, out=out), 1000)}
    with torch.no_grad():
        samples = alternate(runs, effort.pace(1))
    yield from figures_of(LAUNCH, None, samples, lambda _: Scale(Unit.SECONDS, 1))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sized(kind: Kind, dtype: torch.dtype, rows: int) -> _Kernel:
    """Return a kernel of that size, or a small one where the processor has no good code for it."""
    small = _kernel(kind, dtype, min(_LEAST_ROWS, rows))
    small.call()
    if timed(small.call)() > _PATIENCE_S:
        return small
    return _kernel(kind, dtype, rows)


def _kernel(kind: Kind, dtype: torch.dtype, rows: int) -> _Kernel:
    if kind is Kind.MATMUL:
        left, right = _made(dtype, rows, rows), _made(dtype, rows, rows)
        out = _made(dtype, rows, rows)
        return _Kernel(lambda: torch.mm(left, right, out=out), 2 * rows**3)
    if kind is Kind.ATTENTION:
        heads, width = 8, 64
        query, key, value = (_made(dtype, 1, heads, rows, width) for _ in range(3))
        return _Kernel(
            lambda: functional.scaled_dot_product_attention(query, key, value),
            4 * heads * rows * rows * width,
        )
    assert kind is Kind.CONVOLUTION, kind
    channels, side = 64, rows // 16
    image, weight = _made(dtype, 4, channels, side, side), _made(dtype, channels, channels, 3, 3)
    flops = 2 * 4 * channels * channels * 9 * side * side
    return _Kernel(lambda: functional.conv2d(image, weight, padding=1), flops)


def _made(dtype: torch.dtype, *shape: int) -> Tensor:
    random = torch.Generator("cpu").manual_seed(0)
    return torch.randn(shape, generator=random, dtype=torch.float32, device="cpu").to(dtype)
