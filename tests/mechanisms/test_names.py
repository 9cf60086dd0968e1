"""What parameters may be called: anything, and no two values of a model get one name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.e2e.jobs import compiled
from tests.e2e.nets import WIDTH, made, optimizer_of, step, x_of
from tests.e2e.sides import IN_FILE
from tests.mechanisms.at_home import check_in_file, check_training, gradients
from zcompile.backend import Backend
from zcompile.ir import MANAGED_ROLES, Role, Tier, is_name, value_name

NAMES = ["w", "w:grad", "w:exp_avg", "w:grad:grad", "two words", "w(1),%", "w\\u003agrad"]


class Named(nn.Module):
    """A chain of matrices with names that look like those of other values."""

    def __init__(self) -> None:
        super().__init__()
        for at, name in enumerate(NAMES):  # of different sizes, so that none passes for another
            self.register_parameter(name, nn.Parameter(torch.randn(WIDTH + at, WIDTH + at + 1) / 6))

    def forward(self, x: Tensor) -> Tensor:
        for name in NAMES:
            x = torch.tanh(x @ getattr(self, name))
        return x


def test_names_like_those_of_gradients_and_states(swap_dir: Path) -> None:
    def train(model: nn.Module, call: Any) -> list[Tensor]:
        optimizer = optimizer_of(model)
        return [each for seed in range(3) for each in step(call, model, optimizer, seed)]

    session, model = check_training(lambda: made(Named), train, swap_dir)
    check_in_file(session, [*model.parameters(), *gradients(model)])
    values = [each for each in session.planner.values if each.role in MANAGED_ROLES]
    assert len({each.name for each in values}) == len(values) == 4 * len(NAMES)
    assert sum(each.role is Role.GRADIENT for each in values) == len(NAMES)


def test_pins_speak_of_parameters_by_their_own_names(swap_dir: Path) -> None:
    backend, model = Backend(), made(Named)
    place = {"two words": "device", "w:grad": "device"}
    options = {**IN_FILE, "nvme_dir": swap_dir, "place": {"parameters": "nvme", **place}}
    compiled(model, options, backend)(x_of(0))
    (session,) = backend.sessions(model)
    homes = session.machine.homes
    plain = {name for name, each in model.named_parameters() if homes.find(each) is None}
    assert plain == {"two words", "w:grad"}
    assert session.planner.placement.homes["two\\u0020words"] is Tier.DEVICE


@given(st.text(), st.text())
def test_different_texts_have_different_names(one: str, other: str) -> None:
    assert is_name(value_name(one))
    assert ":" not in value_name(one)
    assert (value_name(one) == value_name(other)) == (one == other)


@pytest.mark.parametrize("name", ["layers.0.weight", "w-1", "ü"])
def test_usual_names_stay_as_they_are(name: str) -> None:
    assert value_name(name) == name
