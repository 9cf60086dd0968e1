"""A few layers tell of all exactly: their schedules, unrolled, are those of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.forecast.models import DEPTH, Counting, alternating, sequential, stack
from zcompile.forecasting.capturing import Request, source_of
from zcompile.forecasting.layers import Layers, repeating, shorten
from zcompile.forecasting.tracing import Arguments
from zcompile.forecasting.unroll import Costed, NotRepeated, agrees, unroll
from zcompile.ir import parse

Make = Callable[[], tuple[nn.Module, Any]]
MODELS: dict[str, Make] = {
    "stack": stack,
    "alternating": alternating,
    "sequential": sequential,
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "alternating" else ())
        for name in MODELS
    ],
)
def test_a_few_layers_tell_of_all(name: str) -> None:
    model, x = MODELS[name]()
    request = Request(model, Arguments((x,), {}), True)
    short, whole = source_of(request), source_of(request, whole=True)
    assert "stand for all" in short.how
    assert whole.how == "all layers were traced"
    found, wanted = short.graphs(), whole.graphs()
    assert [each.schedule.name for each in found] == ["forward.0", "backward.0"]
    assert all(map(agrees, found, wanted))
    # What is managed has the very names that it has in the whole model, in the same order.
    for a, b in zip(found, wanted, strict=True):
        assert _named(a) == _named(b)


def _named(costed: Costed) -> list[str]:
    return [each.name for each in costed.schedule.values if "." in each.name]


def test_layers_that_only_look_alike_are_traced_whole() -> None:
    model = Counting().to("meta")
    (layers,) = repeating(model)
    assert layers == Layers("layers", DEPTH, 0, 1)
    request = Request(model, Arguments((torch.zeros(2, 16, device="meta"),), {}), True)
    source = source_of(request)
    assert source.how == "all layers were traced: layers are not alike"
    assert all(map(agrees, source.graphs(), source_of(request, whole=True).graphs()))


def test_the_pattern_of_layers_is_found() -> None:
    model, _ = alternating()
    assert repeating(model) == (Layers("layers", 2 * DEPTH, 1, 2),)
    model, _ = sequential()
    assert repeating(model) == (Layers("", 2 * DEPTH, 0, 2),)


def test_a_layer_that_stands_twice_is_not_taken_apart() -> None:
    layer = nn.Linear(4, 4)
    assert repeating(nn.Sequential(*[layer] * DEPTH)) == ()


@pytest.mark.parametrize("depth", [6, 7])
def test_short_lists_are_traced_whole(depth: int) -> None:
    assert len(repeating(nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth))))) == depth - 6


def test_shortening_leaves_the_model_as_it_was() -> None:
    model, _ = stack()
    (layers,) = repeating(model)
    (short,) = shorten(model, [layers], {layers.path: 3}).values()
    assert len(list(short.children())) == 3
    assert len(list(model.get_submodule(layers.path).children())) == DEPTH


def test_without_five_blocks_nothing_is_unrolled() -> None:
    kernel = "compute a(%l.0.w) -> () transient 0 B"
    schedule = parse(f"schedule s\nvalue %l.0.w : 4 B parameter @ device\n{kernel}\n")
    with pytest.raises(NotRepeated, match="no kernels of 4 blocks"):
        unroll(Costed(schedule, {"a": ()}), Layers("l", 9, 0, 1), 1)
