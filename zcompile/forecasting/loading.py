"""The model of a forecast, without its weights: from a configuration, or from a function."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

CONFIG = "config.json"

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a model is made with: sequences in a batch, tokens in each, and its type of numbers.

    ``None`` leaves it to the model: 1 sequence, 1024 tokens or as many as it takes, and bfloat16.
    """

    batch: int | None = None
    sequence: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model on the meta device, what it is called with, and what to call it."""

    name: str
    model: nn.Module
    example_inputs: object


def load_model(text: str, wanted: Wanted) -> Loaded:
    """Return the model that ``text`` names.

    It is a Hugging Face ``config.json``, or a folder with one, or ``module:function``: a function
    that returns a model and its example inputs, called with the meta device as default, and with
    whatever of ``batch``, ``sequence`` and ``dtype`` it has parameters for.

    Raises ``ValueError`` with the remedy if there is no such thing.
    """
    if wanted.dtype is not None and wanted.dtype not in DTYPES:
        raise ValueError(f"dtype={wanted.dtype!r}: write one of {', '.join(DTYPES)}")
    path = Path(text)
    if path.is_dir():
        path = path / CONFIG
    if path.is_file():
        return _from_config(path, wanted)
    module, colon, function = text.partition(":")
    if not colon or not module or not function:
        raise ValueError(
            f"model={text!r} is neither a {CONFIG}, nor a folder with one, nor module:function"
        )
    return _from_function(text, _function(text, module, function), wanted)


def _function(text: str, module: str, name: str) -> Callable[..., object]:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"model={text!r}: cannot import {module} ({error}); run in its folder, or install it"
        ) from error
    function: object = getattr(found, name, None)
    if not callable(function):
        raise ValueError(f"model={text!r}: {module} has no function {name}")
    return function


def _from_function(text: str, function: Callable[..., object], wanted: Wanted) -> Loaded:
    asked = {
        "batch": wanted.batch,
        "sequence": wanted.sequence,
        "dtype": DTYPES[wanted.dtype] if wanted.dtype else None,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    known = inspect.signature(function).parameters
    for name in given:
        if name not in known:
            raise ValueError(
                f"{name}={getattr(wanted, name)!r}: {text} has no parameter {name}; leave it out, "
                "or give the function one"
            )
    try:
        with torch.device("meta"):
            made = function(**given)
    except Exception as error:  # whatever it is, it is the user's, and goes along as the cause
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"model={text!r}: the function raised {error!r} at {at.filename}:{at.lineno}"
        ) from error
    if not (isinstance(made, tuple) and len(cast("tuple[object, ...]", made)) == 2):
        raise ValueError(f"model={text!r}: the function must return (model, example_inputs)")
    model, example_inputs = cast("tuple[object, object]", made)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model={text!r}: the first thing returned is no torch.nn.Module")
    return Loaded(text, model, example_inputs)


def _from_config(path: Path, wanted: Wanted) -> Loaded:
    if find_spec("transformers") is None:
        raise ValueError(
            f"model={str(path)!r}: to read it takes transformers, which is not installed; "
            "pip install 'zinf[plan]', or name a module:function"
        )
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is in the file
    transformers: Any = importlib.import_module("transformers")
    try:
        config: Any = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"model={str(path)!r}: transformers cannot read it: {first}") from error
    model_class = _model_class(path, config, transformers)
    config.use_cache = False
    with torch.device("meta"), _default_dtype(DTYPES[wanted.dtype or "bfloat16"]):
        model: nn.Module = model_class(config)
    return Loaded(
        path.parent.name or str(path), model.train(), _tokens(path, model, config, wanted)
    )


def _model_class(path: Path, config: Any, transformers: Any) -> Any:
    names = cast("list[str]", getattr(config, "architectures", None) or [])
    for name in names:
        if hasattr(transformers, name):
            return getattr(transformers, name)
    causal: Mapping[Any, Any] = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if not names and type(config) in causal:
        return causal[type(config)]
    raise ValueError(
        f"model={str(path)!r}: transformers has no {' or '.join(names) or 'language model'} for "
        "it; write architectures into the file, or name a module:function"
    )


def _tokens(path: Path, model: nn.Module, config: Any, wanted: Wanted) -> dict[str, torch.Tensor]:
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise ValueError(
            f"model={str(path)!r}: {type(model).__name__} takes {model.main_input_name} and no "
            "tokens; write a function that returns it and its inputs, and name module:function"
        )
    longest = cast("int | None", getattr(config, "max_position_embeddings", None))
    sequence = wanted.sequence or min(1024, longest or 1024)
    if longest is not None and sequence > longest:
        raise ValueError(f"sequence={sequence}: the model takes at most {longest} tokens")
    shape = wanted.batch or 1, sequence
    takes_labels = "labels" in inspect.signature(model.forward).parameters
    names = ("input_ids", "labels") if takes_labels else ("input_ids",)
    return {name: torch.zeros(shape, dtype=torch.int64, device="meta") for name in names}


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Generator[None, None, None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
