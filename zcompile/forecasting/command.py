"""``zinf plan``, once its arguments have been read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from zcompile.forecasting.answer import Forecast
from zcompile.forecasting.budgets import filled
from zcompile.forecasting.forecast import forecast
from zcompile.forecasting.loading import Wanted, load_model
from zcompile.machines import load_machine
from zcompile.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the command was asked; sizes as they were written, ``None`` for what was left out."""

    model: str
    target: str
    device_budget: str | None = None
    host_budget: str | None = None
    host: bool = True
    nvme: bool = True
    compute: str = "eager"
    optimizer: str = "adamw"
    wanted: Wanted
    whole: bool = False


def answer(question: Question) -> Forecast:
    """Return the forecast; whatever memory the question says nothing of is the machine's.

    Raises ``ValueError`` with the remedy for whatever is wrong with the question.
    """
    hardware = load_machine(question.target)
    asked: Mapping[str, str | None] = {
        "device_budget": question.device_budget,
        "host_budget": question.host_budget,
    }
    given = {name: size for name, size in asked.items() if size is not None}
    options = filled(Options.read({**given, "compute": question.compute}), hardware)
    if not question.host:
        options = replace(options, host_budget=None)
    if not question.nvme:
        options = replace(options, nvme_dir=None)
    loaded = load_model(question.model, question.wanted)
    found = forecast(
        loaded.model,
        loaded.example_inputs,
        options,
        hardware,
        optimizer=question.optimizer,
        whole=question.whole,
    )
    return replace(found, model=f"{loaded.name} ({found.model})")


def as_json(found: Forecast) -> str:
    """Return ``found`` as JSON, the placement of each value included."""
    return json.dumps(found.as_dict(), indent=2)
