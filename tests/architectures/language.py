"""The families that read words."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.architectures.family import Family, with_momentum
from tests.architectures.inputs import (
    WORDS,
    classed_sentences,
    sentences,
    translations,
    words_alone,
)

SMALL: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
"""The sizes that most of them name alike."""

GROUPED: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}
"""The same of decoders with fewer heads for keys than for queries."""

GPT: dict[str, Any] = {
    "vocab_size": WORDS,
    "n_embd": 32,
    "n_layer": 1,
    "n_head": 4,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": False,
}

_decoder = partial(Family, kind="decoder", batch=sentences)

DECODERS: dict[str, Family] = {
    "bloom": _decoder(
        model="BloomForCausalLM",
        sizes={"vocab_size": WORDS, "hidden_size": 32, "n_layer": 1, "n_head": 4},
    ),
    "falcon": _decoder(model="FalconForCausalLM", sizes={**SMALL, "use_cache": False}),
    "gpt-2": _decoder(model="GPT2LMHeadModel", sizes=GPT),
    "gpt-neox": _decoder(
        model="GPTNeoXForCausalLM",
        sizes={**SMALL, "use_cache": False},
        make_optimizer=with_momentum,
    ),
    "llama": _decoder(model="LlamaForCausalLM", sizes={**GROUPED, "num_hidden_layers": 2}),
    "qwen-3": _decoder(
        model="Qwen3ForCausalLM",
        sizes={**GROUPED, "head_dim": 8},
        make_optimizer=with_momentum,
    ),
}

_encoder = partial(Family, kind="encoder", batch=sentences)

ENCODERS: dict[str, Family] = {
    "albert": _encoder(
        model="AlbertForMaskedLM", sizes={**SMALL, "embedding_size": 16, "num_hidden_layers": 3}
    ),
    "bert": _encoder(model="BertForMaskedLM", sizes=SMALL),
    "deberta-2": _encoder(
        model="DebertaV2ForMaskedLM",
        sizes={
            **SMALL,
            "relative_attention": True,
            "position_buckets": 8,
            "pos_att_type": ["p2c", "c2p"],
            "share_att_key": True,
        },
    ),
    "electra": _encoder(
        model="ElectraForSequenceClassification",
        sizes={**SMALL, "embedding_size": 16},
        batch=classed_sentences,
    ),
}

T5: dict[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 1,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "use_cache": False,
}

BART: dict[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "use_cache": False,
}

_translator = partial(Family, kind="encoder-decoder", batch=translations)

TRANSLATORS: dict[str, Family] = {
    "bart": _translator(model="BartForConditionalGeneration", sizes=BART),
    "t5": _translator(model="T5ForConditionalGeneration", sizes=T5),
}

EXPERTS: dict[str, Any] = {
    **GROUPED,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}

_mixture = partial(Family, kind="mixture of experts", batch=sentences)

MIXTURES: dict[str, Family] = {
    "gpt-oss": _mixture(
        model="GptOssForCausalLM", sizes={**EXPERTS, "head_dim": 8, "sliding_window": 4}
    ),
    "mixtral": _mixture(model="MixtralForCausalLM", sizes=EXPERTS),
}

STATE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "use_cache": False,
}

_state_space = partial(Family, kind="state space", batch=words_alone)

STATE_SPACES: dict[str, Family] = {
    "mamba": _state_space(
        model="MambaForCausalLM",
        sizes={**STATE, "state_size": 4},
        reference="aot_eager",
        because="transformers scans the time steps in another order when its code is traced",
    ),
    "mamba-2": _state_space(
        model="Mamba2ForCausalLM",
        sizes={
            **STATE,
            "state_size": 4,
            "num_heads": 4,
            "head_dim": 8,
            "expand": 2,
            "n_groups": 2,
            "chunk_size": 4,
        },
    ),
    "rwkv": _state_space(
        model="RwkvForCausalLM", sizes={**STATE, "num_hidden_layers": 2, "context_length": 16}
    ),
}

LANGUAGE: dict[str, Family] = {
    **DECODERS,
    **ENCODERS,
    **TRANSLATORS,
    **MIXTURES,
    **STATE_SPACES,
}
