"""The model with its weights, and the text that it learns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from pydoc_data import topics
from typing import Protocol, cast

import torch
from transformers import AutoTokenizer
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from zcompile.demo.errors import NotEnoughText
from zcompile.demo.job import Job
from zcompile.demo.loop import Batch
from zcompile.runtime.libc import return_freed_memory


def load_model(weights: Path) -> LlamaForCausalLM:
    """Return the model in fp32, ready to train; what loading needed is given back."""
    model = LlamaForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32
    )
    model.train()
    gc.collect()
    return_freed_memory()
    return model


def read_batches(weights: Path, job: Job) -> list[Batch]:
    """Return ``job.num_batches`` batches: what the model takes, by name.

    ``input_ids`` and ``labels`` are int64, (batch, sequence).  The text is Python's own
    reference, one topic after the other.  Raises ``NotEnoughText`` if it is too short.
    """
    needed = job.num_batches * job.num_tokens
    tokens = list(islice(_tokens(weights), needed))
    if len(tokens) < needed:
        raise NotEnoughText(len(tokens), needed)
    # transformers finds out by itself that plain causal attention is meant, but not while it
    # is traced: then it computes a mask, which leads to other kernels and other roundings.
    # Given a whole mask, it does the same in both cases, so that the losses can be compared.
    causal = torch.ones(job.sequence, job.sequence, dtype=torch.bool).tril()
    mask = causal.expand(job.batch, 1, job.sequence, job.sequence)
    shape = (job.num_batches, job.batch, job.sequence)
    return [
        {"input_ids": ids, "labels": ids, "attention_mask": mask}
        for ids in torch.tensor(tokens).view(shape)
    ]


class _Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...


def _tokens(weights: Path) -> Iterator[int]:
    # transformers does not say what it returns here.
    tokenizer = cast(
        "_Tokenizer",
        AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name),
    )
    # Topic by topic: all of them at once would take 50 MiB for a few hundred KiB of tokens.
    texts = (topics.topics[name] for name in sorted(topics.topics))
    yield from chain.from_iterable(map(tokenizer.encode, texts))
