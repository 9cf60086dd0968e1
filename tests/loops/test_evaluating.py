"""Evaluation, sampling and loading of data in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.loops.nets import WIDTH, Layers, adamw, square_loss, step, words_of, x_of
from tests.loops.playing import Run, check_loop


class Normed(nn.Module):
    """Layers with dropout and batch norm: train and eval differ, and statistics are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Layers(3)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.drop(self.norm(self.body(x))))
        return result


def test_evaluation_in_between(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Normed()
        call, optimizer = run.compile(model), adamw(model.parameters())
        for seed in range(3):
            step(run, call, model, optimizer, seed)
            model.eval()
            with torch.no_grad():
                run.see("without gradients", call(x_of(50)), model(x_of(51)))
            with torch.inference_mode():
                run.see("inference", call(x_of(52)), model(x_of(53)))
            run.see("with gradients", call(x_of(54)))
            model.train()

    check_loop(loop, swap_dir)


@pytest.mark.slow
def test_evaluation_between_micro_batches(swap_dir: Path) -> None:
    """While gradients are kept, and while a forward waits for its backward."""

    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters())
        for seed in range(3):
            optimizer.zero_grad()
            square_loss(call, seed).backward()
            with torch.inference_mode():
                run.see("kept gradients", call(x_of(50)))
            loss = square_loss(call, seed + 10)
            with torch.no_grad():
                run.see("in flight", call(x_of(51, batch=9)), model(x_of(52)))
            loss.backward()
            run.see_all(model)
            optimizer.step()
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)


@pytest.mark.slow
def test_first_evaluated_then_trained(swap_dir: Path) -> None:
    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters())
        with torch.inference_mode():
            run.see("first", call(x_of(0)))
        run.see("then", call(x_of(0)))
        for seed in range(2):
            step(run, call, model, optimizer, seed)

    check_loop(loop, swap_dir)


def tiny_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config: Any = LlamaConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def llama_loss(call: Any, seed: int) -> Any:
    # Some of it is masked: without, transformers picks another kernel when it is traced.
    words = words_of(seed, time=9)
    mask = torch.ones_like(words)
    mask[0, -2:] = 0
    return call(
        input_ids=words,
        attention_mask=mask,
        labels=words.masked_fill(mask == 0, -100),
        use_cache=False,
    ).loss


@pytest.mark.parametrize("compiled", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_words_are_generated_in_between(compiled: bool, swap_dir: Path) -> None:
    """By the compiled model or by the original one, both with a cache of keys and values."""

    def loop(run: Run) -> None:
        model = tiny_llama()
        call, optimizer = run.compile(model), adamw(model.parameters())
        for seed in range(2):
            step(run, call, model, optimizer, seed, llama_loss)
            model.eval()
            writer = call if compiled else model
            words = words_of(seed + 50, time=4)
            mask = torch.ones_like(words)
            mask[0, 0] = 0
            written = writer.generate(
                words, attention_mask=mask, max_new_tokens=5, do_sample=False, use_cache=True
            )
            run.see("greedy", written)
            written = writer.generate(
                words, attention_mask=mask, max_new_tokens=3, do_sample=True, use_cache=True
            )
            run.see("sampled", written)
            model.train()

    check_loop(loop, swap_dir)


class Rows(Dataset[Tensor]):
    """Random rows, each its own."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, at: int) -> Tensor:
        return x_of(at, batch=1)[0]


class Stream(IterableDataset[Tensor]):
    """The same as a stream, which every worker sees as a whole."""

    def __iter__(self) -> Iterator[Tensor]:
        return (x_of(at, batch=1)[0] for at in range(8))


@pytest.mark.parametrize("persistent", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_data_comes_from_workers(persistent: bool, swap_dir: Path) -> None:
    """They are forked while homes, threads and an arena exist, some in mid-iteration."""

    def loop(run: Run) -> None:
        model = Layers()
        call, optimizer = run.compile(model), adamw(model.parameters())
        step(run, call, model, optimizer, 0)
        loader = DataLoader(
            Rows(),
            batch_size=4,
            num_workers=2,
            persistent_workers=persistent,
            multiprocessing_context="fork",
        )
        for _ in range(2):
            for batch in loader:
                optimizer.zero_grad()
                loss = call(batch).square().mean()
                for other in DataLoader(Stream(), batch_size=4, num_workers=1):
                    run.see("loaded between forward and backward", other)
                    break
                loss.backward()
                optimizer.step()
                run.see("loss", loss)
            run.see_all(model, optimizer)

    check_loop(loop, swap_dir)
