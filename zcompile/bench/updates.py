"""How long an update by AdamW takes, native and torch's own, beside what memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW

from zcompile.bench.effort import Effort
from zcompile.bench.figure import Figure, Scale, Unit, figures_of
from zcompile.bench.sampling import alternate, computing_with, timed
from zcompile.runtime.native import Native, load
from zcompile.runtime.native_optim import Optimizers
from zcompile.runtime.optim_batch import Item, batch
from zcompile.runtime.optim_formulas import Adam
from zcompile.runtime.pool import Pool

UPDATES = "updates"
NATIVE, FUSED, STREAM = "native", "torch fused", "adding in place"
PARAMETER_BYTES = 28
"""What AdamW moves: parameter and two moments in and out, the gradient in."""

_STREAM_BYTES = 36
"""What is moved when the gradient is added to each of the three in a pass of its own."""

_OPTIONS = Adam(1e-3, weight_decay=0.01, decoupled=True)
_STEP = 5


def measure_updates(effort: Effort, threads: int) -> Iterator[Figure]:
    """Yield seconds a parameter, all in fp32 and in one tensor.

    The limit is a stream of about the same shape: the gradient is added in place to the other
    three.  It is scaled by bytes.
    """
    numel = effort.num_parameters
    param, grad, avg, avg_sq = (
        torch.full((numel,), 1e-3, dtype=torch.float32, device="cpu") for _ in range(4)
    )
    runs: dict[str, Callable[[], object]] = {
        FUSED: _fused(param, grad, avg, avg_sq),
        STREAM: lambda: [each.add_(grad) for each in (param, avg, avg_sq)],
    }
    library = load()
    if isinstance(library, Native):
        runs = {NATIVE: _native(library, threads, Item(param, grad, [avg, avg_sq])), **runs}
    with computing_with(threads), torch.no_grad():
        samples = alternate({name: timed(run) for name, run in runs.items()}, effort.pace(6))

    def scale_of(name: str) -> Scale:
        share = _STREAM_BYTES / PARAMETER_BYTES if name == STREAM else 1.0
        return Scale(Unit.SECONDS_PER_PARAMETER, numel * share)

    limits = {name: STREAM for name in samples if name != STREAM}
    yield from figures_of(UPDATES, threads, samples, scale_of, limits)


def _native(library: Native, threads: int, item: Item) -> Callable[[], object]:
    item.step_size, item.denom_divisor = _OPTIONS.step_size(_STEP), _OPTIONS.denom_divisor(_STEP)
    optimizers, pool, formula = Optimizers(library), Pool(library, threads), _OPTIONS.formula()
    # Where all tensors are is written down anew at each update, as sessions do.
    return lambda: optimizers.step(formula, batch([item]), pool)


def _fused(param: Tensor, grad: Tensor, avg: Tensor, avg_sq: Tensor) -> Callable[[], object]:
    parameter = Parameter(param)
    parameter.grad = grad
    optimizer = AdamW([parameter], _OPTIONS.lr, weight_decay=_OPTIONS.weight_decay, fused=True)
    count = torch.tensor(_STEP - 1.0, dtype=torch.float32, device="cpu")
    optimizer.state[parameter] = {"step": count, "exp_avg": avg, "exp_avg_sq": avg_sq}

    def step() -> None:
        optimizer.step()

    return step
