"""Operations whose inputs, saved tensors or numbers are of an awkward kind."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.cases.nets import WIDTH, Stack
from tests.cases.run import Run, case, square, x_of

_CHECKPOINT = cast("Any", torch.utils.checkpoint.checkpoint)


class _Views(nn.Module):
    """Saves transposes, slices, expansions and windows of one memory, and of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) * 0.1 for _ in range(3))
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.qkv = nn.Parameter(torch.randn(3 * WIDTH, WIDTH) * 0.1)

    def forward(self, x: Any) -> Any:
        for weight in self.weights:
            h = torch.tanh(x @ weight)
            a, b = h.chunk(2, 1)
            x = (h @ h.t()) @ h + torch.cat([b, a], 1) * self.scale.expand_as(h)
            x = x + h.unfold(1, 4, 2).sum((1, 2))[:, None] + h.as_strided((4, WIDTH), (1, 4))
            x = x + functional.relu_(h.clone())[:, ::2].repeat(1, 2) + h.flip(0)
        q, k, v = torch.split(functional.linear(x, self.qkv), WIDTH, 1)
        _, second, third = self.qkv.chunk(3)
        mixed = torch.einsum("ij,kj->ik", x, self.qkv[5 : 5 + WIDTH])
        return q * k + v @ second.t() + x @ third.t() + mixed + x.sort(1).values.cumsum(0)


@case()
def saved_tensors_are_views_of_each_other(run: Run) -> None:
    learner = run.learner(_Views)
    for seed in range(3):
        learner.step(square(learner.call(x_of(seed, 4, WIDTH))))


class _Noisy(nn.Module):
    """Draws numbers of several kinds, in attention, in checkpoints and beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer, block in zip(self.layers, self.blocks, strict=True):
            q, k, v = layer(x).view(2, 6, 4, 3 * WIDTH // 4).transpose(1, 2).chunk(3, -1)
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True)
            x = x + y.transpose(1, 2).reshape(2, 6, WIDTH)
            x = x * torch.bernoulli(torch.full((2, 1, 1), 0.7)) + torch.randn_like(x) * 0.1
            x = _CHECKPOINT(block, x, use_reentrant=False)
        return x


@case(slow=True)
def random_numbers_come_in_the_same_order(run: Run) -> None:
    learner = run.learner(_Noisy)
    torch.manual_seed(3)
    for seed in range(3):
        learner.step(square(learner.call(x_of(seed, 2, 6, WIDTH))))
        run.see(torch.get_rng_state())


class _Constrained(nn.Module):
    """Weights computed from others, with vectors that forward changes in place."""

    def __init__(self) -> None:
        super().__init__()
        spectral: Any = parametrizations.spectral_norm
        normed: Any = parametrizations.weight_norm
        kinds = (spectral, normed, spectral, normed)
        self.layers = nn.ModuleList(kind(nn.Linear(WIDTH, WIDTH)) for kind in kinds)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@case(slow=True)
def weights_are_functions_of_weights(run: Run) -> None:
    learner = run.learner(_Constrained)
    for seed in range(3):
        learner.step(square(learner.call(x_of(seed, 4, WIDTH))))


class _Odd(nn.Module):
    """Parameters of all types and layouts: transposed, strided, empty, scalar, frozen bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()
        self.turned = nn.Parameter(torch.randn(WIDTH, WIDTH).t() * 0.1)
        image = torch.randn(WIDTH, WIDTH, 1, 1) * 0.1
        self.image = nn.Parameter(image.to(memory_format=torch.channels_last))
        self.empty, self.scalar = nn.Parameter(torch.randn(0, WIDTH)), nn.Parameter(torch.ones(()))
        self.exact = nn.Parameter(torch.randn(7, dtype=torch.float64))
        self.halves = nn.ParameterList(torch.randn(n).bfloat16() for n in (1, 3, 129, 4097))
        numbers = torch.randint(-127, 127, (WIDTH, WIDTH), dtype=torch.int8)
        self.bytes = nn.Parameter(numbers, requires_grad=False)
        self.mask = nn.Parameter(torch.rand(WIDTH) > 0.2, requires_grad=False)
        self.large = nn.Parameter(torch.randn(40_000))

    def forward(self, x: Tensor) -> Any:
        x = x @ self.turned @ self.image[:, :, 0, 0] + x @ (self.bytes.float() * 0.01)
        y = torch.cat([self.body(x) * self.scalar * self.mask, self.empty])
        halves = sum(square(each) for each in self.halves)
        return square(y) + self.exact.float().sum() + halves + square(self.large)


@case()
def parameters_of_odd_types_and_layouts(run: Run) -> None:
    learner = run.learner(_Odd)
    for seed in range(3):
        learner.step(learner.call(x_of(seed, 4, WIDTH)))


@case(slow=True)
def saved_tensors_go_through_hooks(run: Run) -> None:
    learner = run.learner(Stack)
    hooks: Any = torch.autograd.graph.saved_tensors_hooks
    on_cpu: Any = torch.autograd.graph.save_on_cpu
    for seed in range(2):
        for context in (hooks(torch.Tensor.clone, torch.Tensor.detach), on_cpu()):
            with context:
                loss = square(learner.call(x_of(seed, 4, WIDTH)))
            learner.step(loss)


@case(slow=True)
def scaled_losses_overflow_now_and_then(run: Run) -> None:
    learner = run.learner(Stack)
    scaler = GradScaler("cpu", init_scale=2.0**40, growth_interval=1)
    for seed in range(4):
        learner.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = square(learner.call(x_of(seed, 4, WIDTH)))
        scaler.scale(loss).backward()
        scaler.unscale_(learner.optimizer)
        run.see(nn.utils.clip_grad_norm_(learner.parameters, 1.0), scaler.get_scale())
        scaler.step(learner.optimizer)
        scaler.update()
        learner.see()


@case(slow=True, refusals=3)
def activations_are_of_any_size_and_sometimes_dropped(run: Run) -> None:
    """They are far larger than the weights, so they travel; plans change from call to call."""
    learner = run.learner(lambda: Stack(6))
    for seed, batch in enumerate((400, 300, 500, 1, 400)):
        learner.call(x_of(9, batch, WIDTH))
        learner.step(square(learner.call(x_of(seed, batch, WIDTH))))
