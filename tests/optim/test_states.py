"""States at home: dictionaries to and from a plain run, and optimizers that we do not know."""

from __future__ import annotations

import copy
import io
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adadelta, AdamW, NAdam, Optimizer

from tests.optim import twins as twins_module
from tests.optim.small_session import SmallSession, all_on, gradients, mixed, parameters, session
from tests.optim.twins import Make, Twins, check_bits, check_states
from zcompile.ir import Tier

NVME = all_on(Tier.NVME)

MAKES: dict[str, Make] = {
    "adamw": partial(AdamW, lr=1e-2, amsgrad=True),
    "sgd": partial(SGD, lr=1e-2, momentum=0.9),
}


def states_of_size(optimizer: Optimizer) -> dict[str, Tensor]:
    return {
        f"{at}:{kind}": value
        for at, (param, state) in enumerate(optimizer.state.items())
        for kind, value in state.items()
        if isinstance(value, Tensor) and value.shape == param.shape and kind != "step"
    }


def tiers_of_states(own: SmallSession, optimizer: Optimizer) -> set[Tier]:
    scalars = {"scale"}  # states of a scalar parameter that torch itself made stay in memory
    assert scalars < own.parameters.keys()
    states = {n: s for n, s in states_of_size(optimizer).items() if s.dim() > 0}
    return set(own.tiers(states).values())


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file)
    return loaded


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_plain_run_goes_on_at_home(tmp_path: Path, make: Make) -> None:
    plain = parameters()
    before = make(list(plain.values()))
    for iteration in range(3):
        for param, gradient in zip(
            plain.values(), gradients(plain.values(), iteration), strict=True
        ):
            param.grad = gradient
        before.step()
    continued = {name: Parameter(each.detach().clone()) for name, each in plain.items()}
    with session(tmp_path, continued, NVME) as own:
        twins = Twins.of(own, plain, make)
        for optimizer in (twins.ours, twins.plain):
            optimizer.load_state_dict(saved_and_loaded(before.state_dict()))
        twins.step(3)
        assert tiers_of_states(own, twins.ours) == {Tier.NVME}
        twins.step(4)


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_a_run_at_home_goes_on_plainly(tmp_path: Path, make: Make) -> None:
    with session(tmp_path, parameters(), mixed) as own:
        twins = Twins.of(own, parameters(), make)
        for iteration in range(3):
            twins.step(iteration)
        ours, plain = saved_and_loaded(twins.ours.state_dict()), twins.plain.state_dict()
        assert ours["param_groups"] == plain["param_groups"]
        restored = make(list(parameters().values()))
        restored.load_state_dict(ours)
        check_states(restored, twins.plain)


def test_loading_between_steps_brings_states_home_at_once(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), NVME) as own:
        twins = Twins.of(own, parameters(), MAKES["adamw"])
        twins.step(0)
        saved = copy.deepcopy(twins.plain.state_dict())
        twins.step(1)
        for optimizer in (twins.ours, twins.plain):
            optimizer.load_state_dict(copy.deepcopy(saved))
        assert tiers_of_states(own, twins.ours) == {Tier.NVME}
        twins.step(2)


@pytest.mark.parametrize("held", [True, False])
def test_states_that_are_views_of_something_larger(tmp_path: Path, held: bool) -> None:
    """What somebody holds stays a view, as in plain PyTorch; otherwise the rest is let go."""
    with session(tmp_path, {"w": Parameter(torch.ones(2000))}, NVME) as own:
        optimizer = SGD(own.parameters.values(), lr=0.1, momentum=0.9)
        own.give_gradients([torch.ones(2000)])
        optimizer.step()
        larger = [torch.arange(10_000.0)]
        (state,) = optimizer.state.values()
        state["momentum_buffer"] = larger[0][2000:4000]
        if not held:
            state["momentum_buffer"] = larger.pop()[2000:4000].data  # no view, for autograd
        for _ in range(2):
            optimizer.step()
        expected = (torch.arange(2000.0, 4000.0) * 0.9 + 1) * 0.9 + 1
        check_bits(state["momentum_buffer"], expected, "momentum")
        place = own.machine.homes.find(state["momentum_buffer"])
        assert place is not None
        assert place.home.nbytes == (40_000 if held else 8000)
        whole = torch.cat([torch.arange(2000.0), expected, torch.arange(4000.0, 10_000.0)])
        for each in larger:
            check_bits(each, whole, "what it is a view of")


class OwnAdamW(AdamW):
    """Does something of its own before torch's step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad.mul_(0.5)
        super().step(closure)


FOREIGN: dict[str, Make] = {
    "nadam": partial(NAdam, lr=1e-3),
    "adadelta": partial(Adadelta, lr=1e-2),
    "subclass": partial(OwnAdamW, lr=1e-2),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_foreign_optimizers_run_on_the_homes(tmp_path: Path, make: Make) -> None:
    with session(tmp_path, parameters(), NVME) as own:
        twins = Twins.of(own, parameters(), make)
        with pytest.warns(UserWarning, match=r"bytes of states .* outside the budget") as caught:
            twins.step(0)
        assert len(caught) == 1
        assert type(twins.ours).__qualname__ in str(caught[0].message)
        assert caught[0].filename in (__file__, twins_module.__file__)  # who called ``step``
        assert tiers_of_states(own, twins.ours) == {Tier.NVME}
        for iteration in range(1, 4):
            twins.step(iteration)
        assert not own.plans
        touched = [*own.parameters.values(), *states_of_size(twins.ours).values()]
        touched += [each.grad for each in own.parameters.values() if each.grad is not None]
        at_home_bytes = sum(each.nbytes for each in touched if own.machine.homes.find(each))
        before = own.machine.ledger.snapshot()
        twins.step(4)
        own.machine.homes.trim()
        assert own.machine.ledger.snapshot().since(before).eager_bytes >= at_home_bytes


def test_nothing_is_said_of_states_that_stay_on_the_device(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), all_on(Tier.DEVICE)) as own, warnings.catch_warnings():
        warnings.simplefilter("error")
        twins = Twins.of(own, parameters(), FOREIGN["nadam"])
        twins.step(0)
