"""The life cycle: whose hooks run when, what they see, and that nothing of ours stays behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sized
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from tests.optim.small_session import SmallSession, all_on, gradients, parameters, session
from tests.optim.twins import Twins
from zcompile.ir import Tier

NVME = all_on(Tier.NVME)


def few(*names: str) -> dict[str, Parameter]:
    return {name: each for name, each in parameters().items() if name in names}


def test_user_hooks_see_what_they_would_see_without_us(tmp_path: Path) -> None:
    seen: list[str] = []

    def look(when: str, optimizer: Optimizer, *_: Any) -> None:
        params = [param for group in optimizer.param_groups for param in group["params"]]
        assert all(param.grad is not None for param in params)
        seen.append(f"{when} {float(params[0].detach().sum()):.5g}")

    def run(params: list[Parameter], give: Callable[[int], None]) -> list[str]:
        seen.clear()
        optimizer = SGD(params, lr=0.1)
        everywhere = register_optimizer_step_pre_hook(partial(look, "global"))
        optimizer.register_step_pre_hook(partial(look, "before"))
        optimizer.register_step_post_hook(partial(look, "after"))
        for iteration in range(3):
            give(iteration)
            optimizer.step()
            optimizer.register_step_pre_hook(partial(look, f"later {iteration}"))
        everywhere.remove()
        return list(seen)

    plain = list(few("norm.bias", "long").values())

    def give_plain(iteration: int) -> None:
        for param, gradient in zip(plain, gradients(plain, iteration), strict=True):
            param.grad = gradient

    expected = run(plain, give_plain)
    with session(tmp_path, few("norm.bias", "long"), NVME) as own:
        params = list(own.parameters.values())

        def give_ours(iteration: int) -> None:
            own.give_gradients(gradients(params, iteration))

        assert run(params, give_ours) == expected


@pytest.mark.parametrize("by_keyword", [False, True])
def test_closures(tmp_path: Path, by_keyword: bool) -> None:
    inputs = torch.linspace(-1, 1, 7)

    def train(optimizer: Optimizer, bias: Parameter) -> list[float]:
        losses: list[float] = []
        before: list[bool] = []

        def look(*_: object) -> None:
            before.append(bias.grad is None)

        optimizer.register_step_pre_hook(look)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = ((bias - inputs) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(4):
            step: Callable[..., Any] = optimizer.step
            losses.append((step(closure=closure) if by_keyword else step(closure)).item())
        assert before == [True, False, False, False]
        return losses

    plain = few("norm.bias")["norm.bias"]
    expected = train(AdamW([plain], lr=0.1), plain)
    with session(tmp_path, few("norm.bias"), NVME) as own:
        ours = own.parameters["norm.bias"]
        assert train(AdamW([ours], lr=0.1), ours) == expected
        assert torch.equal(ours, plain)
        assert own.plans


def test_gradients_stay_and_are_not_written(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), NVME) as own:
        optimizer = AdamW(own.parameters.values(), amsgrad=True)
        given = gradients(own.parameters.values(), 0)
        own.give_gradients(given)
        held = [each.grad for each in own.parameters.values()]
        optimizer.step()
        for param, before, gradient in zip(own.parameters.values(), held, given, strict=True):
            assert param.grad is before
            assert before is not None
            assert torch.equal(before, gradient)


def test_a_wrapped_step_and_a_failing_rest(tmp_path: Path) -> None:
    with session(tmp_path, few("long"), NVME) as own:
        unmanaged = Parameter(torch.ones(3, 3))
        optimizer = AdamW([*own.parameters.values(), unmanaged])
        calls: list[int] = []
        plain_step = cast("Callable[[], Any]", optimizer.step)

        def wrapped() -> Any:
            calls.append(1)
            return plain_step()

        optimizer.step = wrapped  # type: ignore[assignment,method-assign]
        own.give_gradients(gradients(own.parameters.values(), 0))
        unmanaged.grad = torch.ones(3, 3)
        optimizer.step()
        assert calls == [1]
        assert all("exp_avg" in state for state in optimizer.state.values())
        optimizer.state[unmanaged]["exp_avg"] = torch.ones(2)
        with pytest.raises(RuntimeError, match="size"):
            optimizer.step()
        assert own.parameters["long"].grad is not None


def test_a_compiled_step(tmp_path: Path) -> None:
    with session(tmp_path, few("norm.bias"), NVME) as own:
        twins = Twins.of(own, few("norm.bias"), partial(SGD, lr=0.1, momentum=0.5))
        compiled = cast("Callable[[], Any]", torch.compile(twins.ours.step, backend="eager"))
        for iteration in range(3):
            twins.give(gradients(own.parameters.values(), iteration))
            compiled()
            twins.plain.step()
            twins.check()
        assert own.plans


def test_zero_grad_both_ways(tmp_path: Path) -> None:
    with session(tmp_path, parameters(), NVME) as own:
        twins = Twins.of(own, parameters(), partial(SGD, lr=0.1, momentum=0.5))
        for iteration in range(3):
            twins.step(iteration)
            for optimizer in (twins.ours, twins.plain):
                optimizer.zero_grad(set_to_none=False)
            twins.check()
            for optimizer in (twins.ours, twins.plain):
                optimizer.step()  # with gradients of zero: the momentum goes on
            twins.check()
            twins.ours.zero_grad()
            twins.plain.zero_grad()
            for optimizer in (twins.ours, twins.plain):
                optimizer.step()
            twins.check()


@pytest.mark.parametrize("tier", list(Tier))
def test_a_backward_over_an_updated_parameter_is_noticed(tmp_path: Path, tier: Tier) -> None:
    with session(tmp_path, few("norm.bias"), all_on(tier)) as own:
        bias = own.parameters["norm.bias"]
        loss = (bias * bias).sum()
        own.give_gradients(gradients([bias], 0))
        SGD([bias], lr=0.1).step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def num_hooks(optimizer: Optimizer) -> int:
    """Return how many step pre-hooks there are, global ones and those of ``optimizer``."""

    def nothing(*_: object) -> None:
        pass

    num = 0
    for handle in (
        register_optimizer_step_pre_hook(nothing),
        optimizer.register_step_pre_hook(nothing),
    ):
        hooks = cast("Sized | None", handle.hooks_dict_ref())
        assert hooks is not None
        num += len(hooks) - 1
        handle.remove()
    return num


def test_no_hook_stays_after_close(tmp_path: Path) -> None:
    gc.collect()
    optimizer = SGD([Parameter(torch.ones(2))])
    before = num_hooks(optimizer)
    with session(tmp_path, few("norm.bias"), NVME) as own:
        optimizer.add_param_group({"params": list(own.parameters.values())})
        for iteration in range(3):
            own.give_gradients(gradients(own.parameters.values(), iteration))
            optimizer.step()
            assert num_hooks(optimizer) == before + 2
    assert num_hooks(optimizer) == before


def test_no_hook_keeps_the_session_or_the_optimizer(tmp_path: Path) -> None:
    gc.collect()  # the hooks of earlier sessions would go in the middle of the count
    own = SmallSession(tmp_path, few("norm.bias"), NVME)
    optimizer = SGD(own.parameters.values())
    own.give_gradients(gradients(own.parameters.values(), 0))
    optimizer.step()
    before = num_hooks(optimizer)
    seen = weakref.ref(SGD(own.parameters.values()))
    gc.collect()
    assert seen() is None
    own.machine.close()
    gone = weakref.ref(own)
    bias = own.parameters["norm.bias"]
    del own
    gc.collect()
    assert gone() is None
    assert num_hooks(optimizer) == before - 2
    optimizer.step()  # torch's own, on the home
    assert bias.isfinite().all()
