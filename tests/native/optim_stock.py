"""torch's own updates of the tensors in ``optim_cases``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from tests.native.optim_cases import STEP, State
from zcompile.runtime.optim_formulas import Adagrad, Adam, RmsProp, Sgd


def _count() -> list[Tensor]:
    return [torch.tensor(STEP - 1.0)]


def stock_step(
    options: Adam | Sgd | Adagrad | RmsProp,
    on: State,
    *,
    fused: bool = False,
    foreach: bool = False,
    grad_scale: Tensor | None = None,
) -> None:
    """Make update number ``STEP`` of ``on`` as ``torch.optim`` does."""
    found_inf = None if grad_scale is None else torch.tensor(0.0)
    match options:
        case Adam():
            adam(
                [on.param],
                [on.grad],
                [on.states[0]],
                [on.states[1]],
                [on.states[2]] if options.amsgrad else [],
                _count(),
                foreach=foreach,
                fused=fused,
                grad_scale=grad_scale,
                found_inf=found_inf,
                amsgrad=options.amsgrad,
                beta1=options.betas[0],
                beta2=options.betas[1],
                lr=options.lr,
                weight_decay=options.weight_decay,
                eps=options.eps,
                maximize=options.maximize,
                decoupled_weight_decay=options.decoupled,
            )
        case Sgd():
            _stock_sgd(options, on, fused, foreach, grad_scale)
        case Adagrad():
            adagrad(
                [on.param],
                [on.grad],
                [on.states[0]],
                _count(),
                foreach=foreach,
                lr=options.lr,
                weight_decay=options.weight_decay,
                lr_decay=options.lr_decay,
                eps=options.eps,
                maximize=options.maximize,
            )
        case RmsProp():
            rmsprop(
                [on.param],
                [on.grad],
                [on.states[0]],
                [on.states[1]] if options.centered else [],
                [on.states[2]] if options.momentum > 0 else [],
                _count(),
                foreach=foreach,
                lr=options.lr,
                alpha=options.alpha,
                eps=options.eps,
                weight_decay=options.weight_decay,
                momentum=options.momentum,
                centered=options.centered,
                maximize=options.maximize,
            )


def _stock_sgd(
    options: Sgd, on: State, fused: bool, foreach: bool, grad_scale: Tensor | None
) -> None:
    running = options.momentum != 0 and not options.first
    buffers: list[Tensor | None] = [on.states[0] if running else None]
    sgd(
        [on.param],
        [on.grad],
        buffers,
        foreach=foreach,
        fused=fused,
        grad_scale=grad_scale,
        found_inf=None if grad_scale is None else torch.tensor(0.0),
        weight_decay=options.weight_decay,
        momentum=options.momentum,
        lr=options.lr,
        dampening=options.dampening,
        nesterov=options.nesterov,
        maximize=options.maximize,
    )
    if options.momentum != 0 and buffers[0] is not None:
        on.states[0] = buffers[0]
