"""The training loop and the process that runs it plainly."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from zcompile.demo.errors import PlainRunFailed
from zcompile.demo.job import Job
from zcompile.demo.loop import fine_tune
from zcompile.demo.plain import run_plain


class Bigrams(nn.Module):
    """The smallest language model that takes what a transformers model takes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 10)
        self.seen: list[Tensor] = []

    def forward(self, input_ids: Tensor, labels: Tensor, use_cache: bool) -> SimpleNamespace:
        assert not use_cache
        self.seen.append(input_ids)
        logits = self.table(input_ids[:, :-1]).flatten(0, 1)
        return SimpleNamespace(loss=nn.functional.cross_entropy(logits, labels[:, 1:].flatten()))


def test_batches_come_round_and_the_loss_falls() -> None:
    torch.manual_seed(0)
    job = Job(steps=5, sequence=4, num_batches=2, learning_rate=0.1)
    tokens = torch.tensor([[[1, 2, 3, 4]], [[5, 6, 7, 8]]])
    batches = [{"input_ids": ids, "labels": ids} for ids in tokens]
    model = Bigrams()
    done = list(fine_tune(model, list(model.parameters()), batches, job))
    assert [each.number for each in done] == [0, 1, 2, 3, 4]
    assert [seen[0, 0].item() for seen in model.seen] == [1, 5, 1, 5, 1]
    assert done[4].loss < done[2].loss < done[0].loss
    assert all(each.seconds > 0 for each in done)
    assert all(each.grad is None for each in model.parameters())


def test_a_plain_run_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(PlainRunFailed, match="exit code 1"):
        list(run_plain(Path("weights.gguf"), Job()))
