"""Clipping by the norm of all gradients, without passes over those that rest in files.

Note [When gradients are scaled].  A gradient on the device is scaled at once.  One that rests
elsewhere is scaled when it is used: the managed update multiplies it while it has it in memory
anyway, which gives the bits that scaling first would give.  Until then, and after the step,
``p.grad`` shows it as backward left it.  Whatever else is to use it has it scaled first: a
second clipping, and optimizers whose update is torch's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_ as clip_as_torch

from zcompile.backend import zinf_backend
from zcompile.runtime.gradient_facts import GradientFacts
from zcompile.runtime.square_sums import can_sum, square_sum


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Clip gradients as ``torch.nn.utils.clip_grad_norm_`` does; return their total norm.

    The norm is that of torch up to rounding: squares are added up in double precision, in an
    order that depends on the gradients' sizes alone.  Where gradients rest in files, the sums
    that were taken when they were stored are used, as long as nothing has changed them.

    Raises ``RuntimeError`` if ``error_if_nonfinite`` and the norm is not finite, and where a
    gradient that was clipped before has been changed since.
    """
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = [each.grad for each in given if each.grad is not None]
    facts = [facts_of(each) for each in gradients]
    for gradient, known in zip(gradients, facts, strict=True):
        if known is not None:
            known.settle(gradient)
    repeated = len({id(each) for each in gradients}) < len(gradients)
    ours = float(norm_type) == 2.0 and all(map(can_sum, gradients)) and not repeated
    if not gradients or not ours:
        whole = given or parameters  # torch warns of a generator that is empty
        return clip_as_torch(whole, max_norm, norm_type, error_if_nonfinite, foreach)
    total_norm = _total_norm(gradients, facts)
    if error_if_nonfinite and not total_norm.isfinite():
        raise RuntimeError(
            "The total norm of order 2.0 for gradients from `parameters` is non-finite, so it "
            "cannot be clipped. To disable this error and scale the gradients by the non-finite "
            "norm anyway, set `error_if_nonfinite=False`"
        )
    factor = torch.clamp(float(max_norm) / (total_norm + 1e-6), max=1.0)
    for gradient, known in zip(gradients, facts, strict=True):
        if known is None or not known.postpone(gradient, factor):
            gradient.detach().mul_(factor)
    return total_norm


def facts_of(gradient: Tensor) -> GradientFacts | None:
    """Return what is known of gradients where ``gradient`` rests; ``None`` on the device."""
    for session in zinf_backend.all_sessions():
        facts = session.facts_of(gradient)
        if facts is not None:
            return facts
    return None


def _total_norm(gradients: list[Tensor], facts: list[GradientFacts | None]) -> Tensor:
    total = 0.0
    dtype = gradients[0].dtype
    for gradient, known in zip(gradients, facts, strict=True):
        gathered = None
        if known is not None:
            known.gathering = True
            gathered = known.square_sum(gradient)
        total += square_sum(gradient) if gathered is None else gathered
        dtype = torch.promote_types(dtype, gradient.dtype)
    return torch.tensor(sqrt(total) if total == total else total, dtype=dtype, device="cpu")
