"""The Trainer of Hugging Face, whose loop nobody writes: the model is compiled in place."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zcompile
from zcompile.errors import BudgetError
from zcompile.runtime.ledger import Channel

STEPS = 3


def tiny() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 2, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, vocab_size=128, bos_token_id=0, eos_token_id=1))


def rows() -> list[dict[str, Tensor]]:
    """Return what a data set yields: ids, and labels beside them."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 128, (8, 16), generator=generator)
    return [{"input_ids": each, "labels": each} for each in ids]


def train(model: nn.Module, folder: Path, **more: Any) -> dict[str, Tensor]:
    """Train as people do, with warm-up, decay, accumulation and clipping; return all weights."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        warmup_steps=1,
        weight_decay=0.1,
        max_grad_norm=0.5,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        **more,
    )
    Trainer(model=model, args=arguments, train_dataset=rows()).train()
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def options(folder: Path, budget: int) -> dict[str, Any]:
    return {"compute": "eager", "device_budget": budget, "nvme_dir": folder / "swap"}


def smallest(folder: Path) -> int:
    """Return what the error of a budget that is too small names."""
    model = tiny()
    model.compile(backend="zinf", options=options(folder, 1 << 16))
    with pytest.raises(BudgetError) as refused:
        train(model, folder, save_strategy="no")
    return refused.value.smallest_bytes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo, behind a graph break
@pytest.mark.parametrize("save", ["no", "steps"])
def test_the_weights_are_those_of_the_plain_model(save: str, tmp_path: Path) -> None:
    more = {"save_strategy": save, "save_steps": 2}
    want = train(tiny(), tmp_path / "plain", **more)
    torch.compiler.reset()
    budget = int(1.1 * smallest(tmp_path))
    torch.compiler.reset()
    model = tiny()
    model.compile(backend="zinf", options=options(tmp_path, budget))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module=r"zcompile\..*")
        have = train(model, tmp_path, **more)
    stats = zcompile.stats(model)
    assert stats.total.moved_bytes[Channel.NVME_READ] > 0
    assert stats.total.moved_bytes[Channel.NVME_WRITE] > 0
    assert [name for name in want if not torch.equal(want[name], have[name])] == []
