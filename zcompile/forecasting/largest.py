"""The largest batch that has a plan, from one capture in which the batch is a symbol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from zcompile.bridge.aliases import Size, tensors_of
from zcompile.bridge.sizes import UnknownSize, evaluator, guards_hold, symbols_of
from zcompile.bridge.torch_private import NO_SYMBOL
from zcompile.forecasting.answer import Batch
from zcompile.forecasting.capturing import Request, Source, source_of
from zcompile.forecasting.tracing import Arguments
from zcompile.forecasting.unroll import Costed
from zcompile.ir import Schedule

Graphs = tuple[Costed, ...]

TRACED = 7
"""The batch with which a symbol is traced: not 0 or 1, which torch makes numbers of."""

MAX_BATCH = 1 << 20
"""No larger batch is looked for."""

SYMBOLIC = "from one capture in which the batch is a symbol"
TRIED = "from one capture for each batch that was tried: no symbol stands for all of them"


def with_batch(arguments: Arguments, size: int) -> Arguments:
    """Return ``arguments`` with another batch: the first axis of all that have it as long.

    The tensors that are made have no memory.
    """
    batch = batch_of(arguments)

    def changed(tensor: Tensor) -> Tensor:
        if batch is None or tensor.dim() == 0 or tensor.shape[0] != batch:
            return tensor
        shape = (size, *tensor.shape[1:])
        return torch.empty(
            shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad
        )

    positional, named = pytree.tree_map_only(
        Tensor, changed, (arguments.positional, arguments.named)
    )
    return Arguments(positional, named)


def batch_of(arguments: Arguments) -> int | None:
    """Return the length of the first axis of the first tensor; ``None`` if there is none."""
    return next((each.shape[0] for each in _tensors(arguments) if each.dim()), None)


def largest_batch(
    request: Request,
    fits: Callable[[tuple[Schedule, ...]], bool],
    *,
    whole: bool,
) -> Batch:
    """Return the largest batch whose schedules ``fits`` says have room."""
    if batch_of(request.arguments) is None:
        return Batch(None, "no argument is a tensor with axes")
    sizes = _Sizes(request, whole=whole)
    size = last_that_fits(lambda size: fits(sizes.schedules(size)))
    if size == MAX_BATCH:
        return Batch(None, f"no limit up to {MAX_BATCH}, {sizes.how}")
    return Batch(size, sizes.how)


class _Sizes:
    """The schedules for any batch: out of the symbolic capture as far as that holds."""

    def __init__(self, request: Request, *, whole: bool) -> None:
        self._request = request
        self._whole = whole
        self._known: dict[int, tuple[Schedule, ...]] = {}
        self._source: Source | None = None
        self.how = SYMBOLIC
        try:
            source = _symbolic(request, whole=whole)
            self._known[TRACED] = _unrolled(source, TRACED)
        except (UnknownSize, *NO_SYMBOL):
            self.how = TRIED
        else:
            self._source = source

    def schedules(self, size: int) -> tuple[Schedule, ...]:
        """Return the schedules with a batch of ``size``."""
        if size not in self._known:
            self._known[size] = self._made(size)
        return self._known[size]

    def _made(self, size: int) -> tuple[Schedule, ...]:
        if self._source is not None and guards_hold(*_symbols(self._source, size)):
            return _unrolled(self._source, size)
        self.how = TRIED
        return _traced(self._request, size, whole=self._whole)


def _symbolic(request: Request, *, whole: bool) -> Source:
    arguments = with_batch(request.arguments, TRACED)
    before = _tensors(request.arguments)
    batch = batch_of(request.arguments)
    axes = tuple((at, 0) for at, t in enumerate(before) if t.dim() and t.shape[0] == batch)
    return source_of(replace(request, arguments=arguments, symbolic=axes), whole=whole)


def _unrolled(source: Source, size: int) -> tuple[Schedule, ...]:
    return _schedules(source.graphs(_sizes(source, size)))


def _traced(request: Request, size: int, *, whole: bool) -> tuple[Schedule, ...]:
    arguments = with_batch(request.arguments, size)
    return _schedules(source_of(replace(request, arguments=arguments), whole=whole).graphs())


def _sizes(source: Source, size: int) -> Callable[[Size], int]:
    """Return what gives every size of the graphs of ``source`` for a batch of ``size``.

    The batch is all that was left open, so each symbol stands for it.
    """
    _, symbols = _symbols(source, size)
    return evaluator(symbols)


def _symbols(source: Source, size: int) -> tuple[list[Size], dict[sympy.Symbol, int]]:
    """Return lengths of tensors in the graphs of ``source``, and the value of each symbol."""
    lengths: list[Size] = []
    symbols: dict[sympy.Symbol, int] = {}
    for captured in source.captured:
        for node in captured.graph.nodes:
            symbols |= dict.fromkeys(symbols_of(node), size)
            lengths += [length for tensor in tensors_of(node) for length in tensor.shape]
    return lengths, symbols


def last_that_fits(fits: Callable[[int], bool]) -> int:
    """Return the largest size that fits, 0 if none does; more never fits where less does not."""
    low, high = 0, 1
    while high <= MAX_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return min(low, MAX_BATCH)


def _schedules(graphs: Graphs) -> tuple[Schedule, ...]:
    return tuple(each.schedule for each in graphs)


def _tensors(arguments: Arguments) -> list[Tensor]:
    leaves = pytree.tree_leaves((arguments.positional, arguments.named))
    return [each for each in leaves if isinstance(each, Tensor)]
