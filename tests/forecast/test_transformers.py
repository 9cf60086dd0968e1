"""Models of transformers from their configuration: a few layers tell of all, exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from zcompile.forecasting.capturing import Request, source_of
from zcompile.forecasting.tracing import Arguments
from zcompile.forecasting.unroll import agrees

SIZES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    },
    "GPT2LMHeadModel": {"n_embd": 64, "n_layer": 8, "n_head": 4, "vocab_size": 100},
    "T5ForConditionalGeneration": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 7,
        "num_decoder_layers": 8,
        "num_heads": 4,
        "vocab_size": 100,
        "decoder_start_token_id": 0,
    },
}


def built(name: str) -> nn.Module:
    model_class: Any = getattr(transformers, name)
    config = model_class.config_class(**SIZES[name], use_cache=False)
    with torch.device("meta"):
        model: nn.Module = model_class(config).eval()
    return model


# Dynamo looks at the gradient of what comes out of a graph, and hides the warning itself.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_a_few_layers_tell_of_all(name: str) -> None:
    words = {
        n: torch.zeros(2, 12, dtype=torch.int64, device="meta") for n in ("input_ids", "labels")
    }
    request = Request(built(name), Arguments((), words), True)
    short = source_of(request)
    assert "stand for all" in short.how, short.how
    whole = source_of(request, whole=True)
    assert all(map(agrees, short.graphs(), whole.graphs()))
