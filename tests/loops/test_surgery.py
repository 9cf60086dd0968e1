"""Models that are changed in the middle of training: what is new goes home like the rest."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW

from tests.loops.nets import (
    WIDTH,
    WORDS,
    Layers,
    Reader,
    adamw,
    square_loss,
    step,
    word_loss,
    words_of,
    x_of,
)
from tests.loops.playing import Run, check_loop
from tests.loops.test_evaluating import llama_loss, tiny_llama


@pytest.mark.slow
@pytest.mark.parametrize("anew", [True, False])
def test_the_embedding_of_a_language_model_grows(anew: bool, swap_dir: Path) -> None:
    """By transformers' own function, which makes new parameters under the old names.

    The collector is off: cycles left by a compilation must not keep graphs over the old weight.
    """

    def loop(run: Run) -> None:
        model = tiny_llama()
        call, optimizer = run.compile(model), adamw(model.parameters())
        for seed in range(2):
            step(run, call, model, optimizer, seed, llama_loss)
        before = {id(each) for each in model.parameters()}
        model.resize_token_embeddings(75, mean_resizing=False)
        # The embedding stays the same parameter with other data, the head becomes another.
        (new,) = [each for each in model.parameters() if id(each) not in before]
        if anew:
            optimizer = adamw(model.parameters())
        else:
            optimizer.state.pop(model.get_input_embeddings().weight)
            optimizer.add_param_group({"params": [new], "lr": 1e-3})
        for seed in range(2, 4):
            step(run, call, model, optimizer, seed, llama_loss)

    gc.disable()
    try:
        check_loop(loop, swap_dir)
    finally:
        gc.enable()


@pytest.mark.parametrize("anew", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_layer_is_added(anew: bool, swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers(3)
        call, optimizer = run.compile(model), adamw(model.parameters())
        for seed in range(2):
            step(run, call, model, optimizer, seed)
        layer = nn.Linear(WIDTH, WIDTH)
        model.layers.insert(1, layer)  # all after it get other names
        if anew:
            optimizer = adamw(model.parameters())
        else:
            optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-3})
        for seed in range(2, 4):
            step(run, call, model, optimizer, seed)

    check_loop(loop, swap_dir)


def test_layers_are_taken_away(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers(5)
        call, optimizer = run.compile(model), SGD(model.parameters(), lr=0.1, momentum=0.9)
        for seed in range(2):
            step(run, call, model, optimizer, seed)
        del model.layers[1]
        for seed in range(2, 4):
            step(run, call, model, optimizer, seed)

    check_loop(loop, swap_dir)


@pytest.mark.parametrize(
    "width", [7, *(pytest.param(width, marks=pytest.mark.slow) for width in (WORDS, 2 * WORDS))]
)
def test_the_head_is_replaced(width: int, swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Reader()
        call, optimizer = run.compile(model), adamw(model.parameters())
        for seed in range(2):
            step(run, call, model, optimizer, seed, word_loss)
        model.head = nn.Linear(WIDTH, width, bias=False)
        model.embed.requires_grad_(False)
        optimizer = AdamW([each for each in model.parameters() if each.requires_grad])
        model.zero_grad()

        def loss_of(call: Any, seed: int) -> Tensor:
            return functional.cross_entropy(call(words_of(seed))[:, -1], torch.tensor([1, 5]))

        for seed in range(2, 5):
            step(run, call, model, optimizer, seed, loss_of)

    check_loop(loop, swap_dir)


def test_a_weight_becomes_larger_in_place(swap_dir: Path) -> None:
    """``.data`` of another shape: the parameter is the same, its home is not."""

    def loop(run: Run) -> None:
        model = Reader()
        call, optimizer = run.compile(model), adamw(model.parameters())
        for seed in range(2):
            step(run, call, model, optimizer, seed, word_loss)
        for each in (model.embed.weight, model.head.weight):
            each.grad = None
            each.data = torch.cat([each.data, torch.full((9, WIDTH), 0.01)])
            optimizer.state.pop(each)
        for seed in range(2, 4):
            step(run, call, model, optimizer, seed, word_loss)

    check_loop(loop, swap_dir)


def test_weights_are_tied_and_untied(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Reader()
        call, optimizer = run.compile(model), adamw(model.parameters())
        step(run, call, model, optimizer, 0, word_loss)
        model.head.weight = model.embed.weight
        for seed in range(1, 3):
            step(run, call, model, optimizer, seed, word_loss)
        model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
        optimizer.add_param_group({"params": [model.head.weight]})
        for seed in range(3, 5):
            step(run, call, model, optimizer, seed, word_loss)

    check_loop(loop, swap_dir)


def test_what_was_cut_out_serves_elsewhere(swap_dir: Path) -> None:
    """Layers of one compiled model go into another one."""

    def loop(run: Run) -> None:
        first = Layers(4)
        call, optimizer = run.compile(first), adamw(first.parameters())
        for seed in range(2):
            step(run, call, first, optimizer, seed)
        second = Layers(2)
        second.layers.extend(first.layers[:2])
        other, others = run.compile(second), adamw(second.parameters())
        for seed in range(2, 4):
            others.zero_grad()
            loss = square_loss(other, seed)
            loss.backward()
            others.step()
            run.see("loss", loss)
            run.see_all(second, others)
            run.see("of the other", call(x_of(seed)))
            step(run, call, first, optimizer, seed)

    check_loop(loop, swap_dir)
