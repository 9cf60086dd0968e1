"""``zinf plan``: what it takes, what it prints, and how it refuses."""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

from zcompile.cli import main
from zcompile.forecasting import loading
from zcompile.forecasting.loading import Wanted, load_model

RUN = CliRunner()

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 128,
}


def small(batch: int = 2) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), torch.zeros(batch, 8)


def wrong() -> str:
    return "no pair"


def modelless() -> tuple[str, str]:
    return "no", "model"


def failing() -> NoReturn:
    raise KeyError("width")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this file a name under which it can be imported."""
    monkeypatch.setitem(sys.modules, "planned_models", sys.modules[__name__])


def plan(*arguments: str) -> Result:
    return RUN.invoke(main, ["plan", *arguments], env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_a_function_gives_the_model() -> None:
    shown = plan("planned_models:small", "--target", "rtx4090", "--batch", "4")
    assert shown.exit_code == 0, shown.output
    assert "planned_models:small (Sequential) on rtx4090" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80


def test_json_has_all_of_it() -> None:
    shown = plan("planned_models:small", "--json", "--optimizer", "sgd", "--no-nvme", "--no-host")
    data = json.loads(shown.output)
    assert data["placement"]["0.weight"] == "device"
    assert data["budgets"] == {"device": 80_000_000_000, "host": 0, "nvme": 0}
    assert data["fits"] is True


def test_what_does_not_fit_ends_with_one() -> None:
    shown = plan("planned_models:small", "--device-budget", "4KiB", "--no-host")
    assert shown.exit_code == 1
    assert "does not fit: device_budget=4096 B" in shown.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "model='nowhere' is neither a config.json, nor a folder with one, nor"),
        (["nowhere.at.all:make"], "cannot import nowhere.at.all"),
        (["planned_models:absent"], "planned_models has no function absent"),
        (["planned_models:wrong"], "the function must return (model, example_inputs)"),
        (["planned_models:modelless"], "the first thing returned is no torch.nn.Module"),
        (["planned_models:failing"], "the function raised KeyError('width') at "),
        (["planned_models:small", "--sequence", "4"], "sequence=4: planned_models:small has no"),
        (["planned_models:small", "--dtype", "int8"], "dtype='int8': write one of float32"),
        (["planned_models:small", "--target", "h1000"], "machine='h1000' is neither a file"),
        (["planned_models:small", "--device-budget", "lots"], "device_budget='lots': is no size"),
        (["planned_models:small", "--device-budget", "1TB"], "device_budget=1000000000000: h100"),
        (["planned_models:small", "--optimizer", "adamww"], "did you mean 'adamw'"),
    ],
)
def test_a_wrong_question_ends_with_two_and_the_remedy(arguments: list[str], told: str) -> None:
    refused = plan(*arguments)
    assert refused.exit_code == 2
    assert told in refused.output


def config(folder: Path, **changed: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**LLAMA, **changed}))
    return path


def test_without_transformers_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str) -> ModuleSpec | None:
        del name
        return None

    monkeypatch.setattr(loading, "find_spec", nothing)
    refused = plan(str(config(tmp_path)))
    assert refused.exit_code == 2
    assert "pip install 'zinf[plan]'" in refused.output


@pytest.mark.slow
@pytest.mark.parametrize("as_folder", [True, False], ids=["folder", "file"])
def test_a_configuration_gives_the_model(tmp_path: Path, as_folder: bool) -> None:
    path = config(tmp_path)
    found = load_model(str(path.parent if as_folder else path), Wanted(2, 16, "float16"))
    assert type(found.model).__name__ == "LlamaForCausalLM"
    assert {each.dtype for each in found.model.parameters()} == {torch.float16}
    assert all(each.is_meta for each in found.model.parameters())
    inputs = cast("dict[str, torch.Tensor]", found.example_inputs)
    assert {name: tuple(each.shape) for name, each in inputs.items()} == {
        "input_ids": (2, 16),
        "labels": (2, 16),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model_type": "nothing"}, "transformers cannot read it"),
        ({"architectures": ["NoModel"]}, "transformers has no NoModel for it"),
        ({"max_position_embeddings": 8}, "sequence=16: the model takes at most 8 tokens"),
    ],
)
def test_a_wrong_configuration_is_refused(
    tmp_path: Path, changed: dict[str, object], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        load_model(str(config(tmp_path, **changed)), Wanted(sequence=16))
