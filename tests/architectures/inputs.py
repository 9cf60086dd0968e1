"""What the models are called with: a few words, small pictures, short sounds.

Sentences are of different length: transformers drops a mask that masks nothing, except when
its code is traced, and then calls another kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

WORDS = 61
"""The size of every vocabulary."""

SIDE = 16


def _draw(generator: torch.Generator, below: int, *shape: int, least: int = 0) -> Tensor:
    return torch.randint(least, below, shape, generator=generator)


def padded_words(generator: torch.Generator) -> dict[str, Tensor]:
    """Return two sentences, the second shorter, and their mask."""
    words = _draw(generator, WORDS, 2, 9, least=3)
    mask = torch.ones_like(words)
    mask[1, -2:] = 0
    return {"input_ids": words, "attention_mask": mask}


def sentences(generator: torch.Generator) -> dict[str, Tensor]:
    """Return sentences whose words are to be told."""
    given = padded_words(generator)
    return {**given, "labels": given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)}


def classed_sentences(generator: torch.Generator) -> dict[str, Tensor]:
    """Return sentences of two classes."""
    return {**padded_words(generator), "labels": _draw(generator, 2, 2)}


def words_alone(generator: torch.Generator) -> dict[str, Tensor]:
    """Return two sentences of one length, for models that know no mask."""
    words = _draw(generator, WORDS, 2, 9, least=3)
    return {"input_ids": words, "labels": words}


def translations(generator: torch.Generator) -> dict[str, Tensor]:
    """Return sentences and the shorter ones that they are to become."""
    return {**padded_words(generator), "labels": _draw(generator, WORDS, 2, 6, least=3)}


def pictures(generator: torch.Generator, *, side: int = SIDE) -> dict[str, Tensor]:
    """Return two pictures of two classes."""
    pixels = torch.randn(2, 3, side, side, generator=generator)
    return {"pixel_values": pixels, "labels": _draw(generator, 2, 2)}


def pictures_alone(generator: torch.Generator, *, side: int = SIDE) -> dict[str, Tensor]:
    """Return two pictures."""
    return {"pixel_values": torch.randn(2, 3, side, side, generator=generator)}


def classed_pixels(generator: torch.Generator, *, side: int = 32) -> dict[str, Tensor]:
    """Return two pictures and the class of each of their pixels."""
    given = pictures_alone(generator, side=side)
    return {**given, "labels": _draw(generator, 2, 2, side, side)}


def spectra(generator: torch.Generator) -> dict[str, Tensor]:
    """Return the spectra of two sounds and the words spoken in them."""
    features = torch.randn(2, 8, 32, generator=generator)
    return {"input_features": features, "labels": _draw(generator, WORDS, 2, 6, least=3)}


def pairs(generator: torch.Generator) -> dict[str, Any]:
    """Return two sentences and the pictures that they belong to."""
    return {**padded_words(generator), **pictures_alone(generator), "return_loss": True}
