"""The families that see or hear, and those that read as well."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.architectures.family import Family, with_momentum
from tests.architectures.inputs import (
    SIDE,
    classed_pixels,
    pairs,
    pictures,
    spectra,
)
from tests.architectures.language import BART, SMALL

VIEW: dict[str, Any] = {
    "image_size": SIDE,
    "patch_size": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}

BLOCKS: dict[str, Any] = {
    "embedding_size": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "layer_type": "basic",
}


UNUSED_OUTPUTS = (
    "outputs that the loss does not use get gradients of zeros from AOTAutograd; adding them "
    "changes how the gradient of the scores lies in memory, and so the order of a sum over it"
)

INTERPOLATION = (
    "bilinear interpolation, one kernel in plain PyTorch, is traced as several operations"
)


_seeing = partial(Family, kind="vision", batch=pictures)

VISION: dict[str, Family] = {
    "convnext": _seeing(
        model="ConvNextForImageClassification",
        sizes={
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_stages": 2,
            "drop_path_rate": 0.1,
        },
        batch=partial(pictures, side=32),
        make_optimizer=with_momentum,
    ),
    "dinov2": _seeing(model="Dinov2ForImageClassification", sizes=VIEW),
    "resnet": _seeing(
        model="ResNetForImageClassification",
        sizes=BLOCKS,
        batch=partial(pictures, side=32),
        make_optimizer=with_momentum,
    ),
    "segformer": _seeing(
        model="SegformerForSemanticSegmentation",
        sizes={
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        batch=classed_pixels,
        reference="aot_eager",
        because=INTERPOLATION,
    ),
    "swin": _seeing(
        model="SwinForImageClassification",
        sizes={
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 1],
            "num_heads": [2, 4],
            "window_size": 4,
        },
        batch=partial(pictures, side=32),
    ),
    "vit": _seeing(model="ViTForImageClassification", sizes=VIEW),
}

AUDIO: dict[str, Family] = {
    "whisper": Family(
        kind="audio",
        model="WhisperForConditionalGeneration",
        sizes={
            **BART,
            "num_mel_bins": 8,
            "max_source_positions": 16,
            "max_target_positions": 16,
        },
        batch=spectra,
    ),
}

MULTIMODAL: dict[str, Family] = {
    "clip": Family(
        kind="multimodal",
        model="CLIPModel",
        sizes={
            "text_config": {**SMALL, "bos_token_id": 1, "eos_token_id": 2},
            "vision_config": VIEW,
            "projection_dim": 16,
        },
        batch=pairs,
        reference="aot_eager",
        because=UNUSED_OUTPUTS,
    ),
}

SENSES: dict[str, Family] = {**VISION, **AUDIO, **MULTIMODAL}
