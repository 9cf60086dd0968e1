"""What people do to gradients between backward and step, and how they come by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from tests.cases.nets import WIDTH, Heads, Stack
from tests.cases.run import Learner, Run, case, square, x_of


def _loss(learner: Learner, seed: int, batch: int = 4) -> Any:
    return square(learner.call(x_of(seed, batch, WIDTH)))


@case(slow=True, refusals=2)
def micro_batches_of_uneven_sizes(run: Run) -> None:
    learner = run.learner(Stack)
    for seed in range(3):
        learner.optimizer.zero_grad(set_to_none=seed % 2 == 0)
        for number, batch in enumerate((4, 4, 3, 1)):
            (_loss(learner, 10 * seed + number, batch) / 4).backward()
        learner.optimizer.step()
        learner.see()


@case(warns="the gradient of layers.0.weight .* stays in ordinary memory")
def gradients_are_views_of_one_flat_buffer(run: Run) -> None:
    learner = run.learner(Stack)
    flat = torch.zeros(sum(each.numel() for each in learner.parameters))
    at = 0
    for each in learner.parameters:
        each.grad = flat[at : at + each.numel()].view_as(each)
        at += each.numel()
    for seed in range(3):
        flat.zero_()
        for number in range(2):
            _loss(learner, 10 * seed + number).backward()
        run.see(flat)
        flat.clamp_(-0.01, 0.01)
        learner.optimizer.step()
        learner.see()


@case()
def gradients_are_replaced_changed_and_dropped(run: Run) -> None:
    learner = run.learner(Stack)
    for seed in range(4):
        learner.optimizer.zero_grad(set_to_none=seed % 2 == 0)
        _loss(learner, seed).backward()
        for number, each in enumerate(learner.parameters):
            assert each.grad is not None
            if number % 3 == 0:
                each.grad = each.grad * 0.5
            elif number % 3 == 1:
                each.grad.data.add_(0.01)
            elif seed == 2:
                each.grad = None
        learner.optimizer.step()
        learner.see()


@case(slow=True)
def gradients_of_all_steps_are_kept(run: Run) -> None:
    learner = run.learner(Stack)
    kept: list[list[Tensor]] = []
    for seed in range(4):
        learner.optimizer.zero_grad()
        _loss(learner, seed).backward()
        kept.append([each.grad for each in learner.parameters if each.grad is not None])
        for before, now in zip(kept[seed - 1], kept[seed], strict=True):
            run.see((before * now).sum())
        learner.optimizer.step()
    for gradients in kept:
        run.see(*gradients)
    learner.see()


def _clip_by_parts(parameters: list[nn.Parameter]) -> Tensor:
    norm: Tensor = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    nn.utils.clip_grads_with_norm_(parameters, 0.01, norm)
    return norm


_CLIPPINGS: list[Callable[[list[nn.Parameter]], object]] = [
    lambda parameters: nn.utils.clip_grad_value_(parameters, 0.001),
    lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.01, float("inf"), foreach=True),
    lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.01, 1.0, foreach=False),
    _clip_by_parts,
]


@case(inductor=True)
def gradients_are_clipped_in_every_way(run: Run) -> None:
    learner = run.learner(Stack)
    for seed, clip in enumerate(_CLIPPINGS):
        learner.optimizer.zero_grad()
        _loss(learner, seed).backward()
        norm = clip(learner.parameters)
        run.see(0.0 if norm is None else norm)
        learner.optimizer.step()
        learner.see()


@case(slow=True)
def a_step_that_is_not_finite_is_left_out(run: Run) -> None:
    learner = run.learner(Stack)
    for seed in range(4):
        learner.optimizer.zero_grad()
        (_loss(learner, seed) * (float("inf") if seed == 1 else 1.0)).backward()
        norm = nn.utils.clip_grad_norm_(learner.parameters, 1.0)
        run.see(norm)
        if torch.isfinite(norm):
            learner.optimizer.step()
        learner.see()


@case()
def losses_are_differentiated_one_after_another(run: Run) -> None:
    learner = run.learner(Heads)
    trunk = list(learner.model.trunk.parameters())
    for seed in range(3):
        learner.optimizer.zero_grad()
        a, b, _ = learner.call(x_of(seed, 4, WIDTH))
        losses = square(a), square(b)
        for loss in losses:
            run.see(*torch.autograd.grad(loss, trunk, retain_graph=True))
        (losses[0] + losses[1]).backward(retain_graph=True)
        learner.see_gradients()
        (losses[0] * 2 + losses[1]).backward()
        learner.optimizer.step()
        learner.see()


@case(slow=True)
def backward_is_asked_for_some_weights_only(run: Run) -> None:
    learner = run.learner(Heads)
    model = learner.model
    for seed in range(3):
        learner.optimizer.zero_grad()
        a, b, h = learner.call(x_of(seed, 4, WIDTH))
        some = [model.trunk.layers[0].weight, model.a.weight]
        a.sum().backward(inputs=some, retain_graph=True)
        (b.sum() + h.mean()).backward(inputs=list(model.b.parameters()))
        learner.optimizer.step()
        learner.see()


@case()
def what_a_model_has_returned_is_kept(run: Run) -> None:
    learner = run.learner(Heads)
    kept: list[Tensor] = []
    for seed in range(4):
        results = learner.call(x_of(seed, 4, WIDTH))
        kept += results
        learner.step(sum(square(each) for each in results))
    run.see(*kept)


@case()
def hooks_of_all_kinds_come_and_go(run: Run) -> None:
    learner = run.learner(Stack)
    weights = [each.weight for each in learner.model.layers]
    bias = learner.model.layers[3].bias
    fired: list[int] = []
    looked: list[float] = []

    def double(gradient: Tensor) -> Tensor:
        fired.append(1)
        return gradient * 2

    def leave(gradient: Tensor) -> None:
        fired.append(gradient.dim())

    def halve(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    def look_and_write(parameter: Tensor) -> None:
        looked.append(float(weights[3].sum()))
        parameter.data.add_(0.001)

    handle = weights[0].register_hook(double)
    weights[1].register_post_accumulate_grad_hook(halve)
    weights[2].register_hook(leave)
    bias.register_post_accumulate_grad_hook(look_and_write)
    for seed in range(4):
        if seed == 2:
            handle.remove()
            weights[3].register_hook(torch.zeros_like)
        learner.step(_loss(learner, seed))
    # A compiled backward, that of aot_eager too, calls the hooks of a graph in an order of its own.
    run.see(sorted(fired), looked)


@case(slow=True)
def every_weight_steps_inside_backward(run: Run) -> None:
    learner = run.learner(Stack)
    optimizers: dict[Tensor, Optimizer] = {}

    def step(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    each: Any
    for each in learner.parameters:
        optimizers[each] = AdamW([each], lr=1e-2)
        each.register_post_accumulate_grad_hook(step)
    for seed in range(4):
        loss = _loss(learner, seed)
        loss.backward()
        run.see(loss)
        learner.see_weights()
    for parameter, optimizer in optimizers.items():
        run.see(*optimizer.state[parameter].values())


@case(slow=True)
def inputs_and_outputs_keep_gradients_too(run: Run) -> None:
    learner = run.learner(Stack)

    def double(gradient: Tensor) -> Tensor:
        return gradient * 2

    for seed in range(3):
        x = x_of(seed, 4, WIDTH).requires_grad_()
        y = learner.call(x)
        y.retain_grad()
        y.register_hook(double)
        learner.step(square(y))
        run.see(x.grad, y.grad)


class _Layouts(nn.Module):
    """Weights whose gradients arise transposed, in another format, or as one element for all."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Parameter(torch.randn(4, WIDTH, WIDTH // 4))
        self.gaps = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH)[:, ::2] / 8)
        self.added = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.wide = nn.Conv2d(8, 32, 3, padding=1)
        self.body = Stack(3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.einsum("bd,hdk->bhk", x, self.heads).flatten(1) @ self.gaps
        seen = y.view(-1, 8, 2, 4).to(memory_format=torch.channels_last)
        return self.body(y) + self.wide(seen).mean(), (self.added * 0.1).sum()


@case()
def gradients_arise_in_other_layouts(run: Run) -> None:
    learner = run.learner(_Layouts, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    for seed in range(3):
        y, added = learner.call(x_of(seed, 4, WIDTH))
        learner.step(square(y) + added)
