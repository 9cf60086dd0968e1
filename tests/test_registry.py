"""Names of parameters, by identity and without keeping anything alive."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn

from zcompile.registry import Registry


def test_a_parameter_and_its_name_find_each_other() -> None:
    registry, weight = Registry(), nn.Parameter(torch.ones(2))
    registry.add("weight", weight)
    assert registry.name_of(weight) == "weight"
    assert registry.parameter("weight") is weight
    assert list(registry) == [("weight", weight)]


def test_an_equal_parameter_is_another_one() -> None:
    registry, weight = Registry(), nn.Parameter(torch.ones(2))
    registry.add("weight", weight)
    assert registry.name_of(nn.Parameter(torch.ones(2))) is None


def test_a_later_parameter_takes_the_name() -> None:
    registry, first, second = Registry(), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    registry.add("weight", first)
    registry.add("weight", second)
    assert registry.parameter("weight") is second


def test_a_parameter_that_comes_back_takes_the_name_again() -> None:
    registry, first, second = Registry(), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    for each in (first, second, first):
        registry.add("weight", each)
        assert registry.parameter("weight") is each


def test_a_parameter_of_two_names_gives_one_back() -> None:
    registry, tied, untied = Registry(), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    registry.add("embed", tied)
    registry.add("head", tied)
    assert registry.name_of(tied) == "head"
    assert all(registry.has_called(tied, name) for name in ("embed", "head"))
    assert not registry.has_called(untied, "head")
    registry.add("embed", tied)
    registry.add("head", untied)
    assert (registry.name_of(tied), registry.name_of(untied)) == ("embed", "head")


def test_nothing_is_kept_alive() -> None:
    registry, weight = Registry(), nn.Parameter(torch.ones(2))
    registry.add("weight", weight)
    alive = weakref.ref(weight)
    del weight
    gc.collect()
    assert alive() is None
    assert registry.parameter("weight") is None
    assert list(registry) == []
