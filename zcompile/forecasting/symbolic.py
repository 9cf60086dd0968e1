"""Peak bytes and iteration time of a model as expressions of its batch and its sequence.

The graphs are captured with both lengths as symbols, by the backend's own way.  All sizes and
flops in them are polynomials of the lengths; a peak is the largest of some, and the time of a
kernel the larger of two.  So a question such as "which batch still fits" is solved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import sympy as sp  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from zcompile.forecasting.capturing import Request, source_of
from zcompile.forecasting.expressed import TRACED_BATCH, TRACED_SEQUENCE, Work, express
from zcompile.forecasting.polynomials import (
    ALGEBRA,
    BATCH,
    SEQUENCE,
    Coefficients,
    expression,
    largest,
)
from zcompile.forecasting.tracing import Arguments
from zcompile.ir import Hardware

BANDWIDTH = sp.Symbol("bandwidth", positive=True)
"""Bytes a second of the channel that parameters and gradients move over."""


@dataclass(frozen=True, slots=True)
class Symbolic:
    """One step of training, forward and backward, in `BATCH` and `SEQUENCE`.

    ``resident_bytes`` is the peak with everything at home on the device, ``lean_bytes`` that of
    the leanest plan that keeps there what is saved for backward: the smallest budget, the
    optimizer's states and I/O buffers left out of both.  ``moved_bytes`` is what that plan moves,
    in and out together.  ``work`` says which operations the kernels are made of, and how often
    each occurs.
    """

    resident_bytes: sp.Expr
    lean_bytes: sp.Expr
    moved_bytes: int
    work: Mapping[Work, int]

    def kernel_seconds(self, hardware: Hardware) -> sp.Expr:
        """Return how long all kernels take on ``hardware`` by the roofline, nothing beside them.

        Raises ``ValueError`` if it has no rate for an operation.
        """
        found: sp.Expr = sp.Add(*_seconds(self.work, hardware))
        return found

    def iteration_seconds(self, hardware: Hardware) -> sp.Expr:
        """Return the time of a step if all moves of the lean plan hide behind its kernels.

        They go over one channel of `BANDWIDTH`.
        """
        found: sp.Expr = ALGEBRA.Max(self.kernel_seconds(hardware), self.moved_bytes / BANDWIDTH)
        return found

    def largest_batch(self, budget_bytes: int, sequence: int) -> int:
        """Return the largest batch whose leanest plan fits ``budget_bytes``; 0 if none does."""
        at_length = self.lean_bytes.subs(SEQUENCE, sequence)
        parts = at_length.args if isinstance(at_length, sp.Max) else (at_length,)
        return min(_root(cast("sp.Expr", each), budget_bytes) for each in parts)

    def bandwidth_for(
        self, share: float, hardware: Hardware, *, overlapped: bool = True
    ) -> sp.Expr:
        """Return the `BANDWIDTH` at which the ``share`` of the time goes to kernels.

        Where moves hide behind kernels, that is so once they take no longer than the kernels
        and the rest of the time; not ``overlapped``, the two take turns, as in ZeRO-Infinity.
        """
        if not 0 < share < 1:
            raise ValueError(f"share={share} must be between 0 and 1")
        computing = sp.Symbol("computing", positive=True)
        moving = self.moved_bytes / BANDWIDTH
        taken = moving if overlapped else computing + moving
        (found,) = cast(
            "list[sp.Expr]", sp.solve(sp.Eq(computing, ALGEBRA.nsimplify(share) * taken), BANDWIDTH)
        )
        bandwidth: sp.Expr = found.subs(computing, self.kernel_seconds(hardware))
        return bandwidth


def symbolic(
    model: nn.Module, example_inputs: Mapping[str, Tensor] | Sequence[Tensor], *, eager: bool = True
) -> Symbolic:
    """Return a step of ``model`` as expressions; nothing is allocated, as for a forecast.

    The first axis of every input is the batch, the second, where there is one, the sequence.

    Raises ``UnknownSize`` if the data of a call decides a size, and ``NotPolynomial`` if one
    depends on a length in another way.
    """
    arguments, axes = _opened(example_inputs)
    request = Request(model, arguments, eager, axes)
    found = express(source_of(request, whole=True).captured)
    return Symbolic(
        resident_bytes=_maximum(found.resident),
        lean_bytes=_maximum(found.lean),
        moved_bytes=found.moved_bytes,
        work=found.work,
    )


def _opened(
    example_inputs: Mapping[str, Tensor] | Sequence[Tensor],
) -> tuple[Arguments, tuple[tuple[int, int], ...]]:
    lengths = (TRACED_BATCH, TRACED_SEQUENCE)

    def traced(given: Tensor) -> Tensor:
        shape = (*lengths[: given.dim()], *given.shape[2:])
        return torch.empty(shape, dtype=given.dtype, device="meta")

    if isinstance(example_inputs, Mapping):
        arguments = Arguments((), {name: traced(each) for name, each in example_inputs.items()})
    else:
        arguments = Arguments(tuple(map(traced, example_inputs)), {})
    tensors = pytree.tree_leaves((arguments.positional, arguments.named))
    axes = ((at, axis) for at, each in enumerate(tensors) for axis in range(min(2, each.dim())))
    return arguments, tuple(axes)


def _maximum(candidates: Sequence[Coefficients]) -> sp.Expr:
    return cast("sp.Expr", sp.Max(*map(expression, largest(candidates))))


def _seconds(work: Mapping[Work, int], hardware: Hardware) -> Iterator[sp.Expr]:
    rates = {str(kind): by_type for kind, by_type in hardware.flops_per_s.items()}
    for each, times in work.items():
        parts: list[sp.Expr] = [
            expression(each.nbytes) / ALGEBRA.nsimplify(hardware.memory_bytes_per_s)
        ]
        if any(each.flops):
            known = rates.get(each.kind, {})
            if each.dtype not in known:
                raise ValueError(f"{hardware.name} has no flops_per_s[{each.kind}][{each.dtype}]")
            parts.append(expression(each.flops) / ALGEBRA.nsimplify(known[each.dtype]))
        launching: sp.Expr = each.launches * ALGEBRA.nsimplify(hardware.launch_s)
        yield cast("sp.Expr", times * (launching + sp.Max(*parts)))


def _root(size: sp.Expr, budget_bytes: int) -> int:
    """Return the last whole `BATCH` at which ``size``, which grows with it, is in the budget."""
    if not size.has(BATCH):
        raise ValueError(f"{size} does not depend on the batch: any has a plan, or none has")
    roots = cast("list[sp.Expr]", sp.real_roots(sp.Poly(size - budget_bytes, BATCH)))
    return max((int(sp.floor(each)) for each in roots if each >= 1), default=0)
