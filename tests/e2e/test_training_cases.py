"""What training scripts do around a compiled model: bits are those of plain PyTorch."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.e2e.looking import Observed, looking
from tests.e2e.nets import WIDTH, Net, loss_of, made, optimizer_of, step, x_of
from tests.e2e.sides import Compile, check_same, copies, in_file
from zcompile.backend import Backend
from zcompile.ir import Tier


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_accumulate(to_none: bool, swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(Net)
        call, optimizer, seen = compile_model(model), optimizer_of(model), list[Tensor]()
        for seed in range(3):
            optimizer.zero_grad(set_to_none=to_none)
            loss_of(call, seed).backward()
            kept = [each.grad for each in model.parameters()]
            loss_of(call, seed + 10).backward()
            seen += [each.clone() for each in kept if each is not None]
            optimizer.step()
            seen += copies(model)
        return seen

    check_same(script, swap_dir)


def test_gradients_that_are_kept_are_not_written_again(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(Net)
        call, kept = compile_model(model), list[Tensor]()
        for seed in range(3):
            loss_of(call, seed).backward()
            kept += [each.grad for each in model.parameters() if each.grad is not None]
            model.zero_grad()
        return kept

    check_same(script, swap_dir)


@pytest.mark.parametrize("first", [0, 1])
def test_a_graph_is_walked_twice(first: int, swap_dir: Path) -> None:
    """Also where the ``first`` such graph comes after others that were walked once."""

    def script(compile_model: Compile) -> list[Tensor]:
        model = made(Net)
        call, optimizer, seen = compile_model(model), optimizer_of(model), list[Tensor]()
        for seed in range(2):
            optimizer.zero_grad()
            loss = loss_of(call, seed)
            if seed >= first:
                loss.backward(retain_graph=True)
                seen += copies(model, loss)
            loss.backward()
            optimizer.step()
            seen += copies(model)
        return seen

    check_same(script, swap_dir)


def test_two_forwards_are_in_flight(swap_dir: Path) -> None:
    # No tied weights: what a weight gets from two places of two graphs is summed in another
    # order when each graph is one node, whichever backend made it.
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(lambda: Observed(WIDTH, 2))
        call, seen = compile_model(model), list[Tensor]()
        first, second = loss_of(call, 0), loss_of(call, 1)
        (first + second).backward()
        seen += copies(model)
        first, second, dropped = loss_of(call, 2), loss_of(call, 3), loss_of(call, 4)
        del dropped
        second.backward()
        seen += copies(model)
        first.backward()
        return seen + copies(model)

    check_same(script, swap_dir)


def test_an_evaluation_between_forward_and_backward(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(Net)
        call, optimizer, seen = compile_model(model), optimizer_of(model), list[Tensor]()
        for seed in range(2):
            loss = loss_of(call, seed)
            with torch.no_grad():
                seen.append(call(x_of(20)).clone())
            with torch.inference_mode():
                seen.append(call(x_of(21)).clone())
            loss.backward()
            optimizer.step()
            seen += copies(model, loss)
        return seen

    check_same(script, swap_dir)


def test_a_model_that_was_first_evaluated(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(Net)
        call = compile_model(model)
        with torch.inference_mode():
            first = call(x_of(0)).clone()
        optimizer = optimizer_of(model)
        return [first, *step(call, model, optimizer, 1), *step(call, model, optimizer, 2)]

    check_same(script, swap_dir)


def test_a_copy_of_a_compiled_model_lives_by_itself(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(Net)
        call, optimizer = compile_model(model), optimizer_of(model)
        seen = step(call, model, optimizer, 0)
        other_call = copy.deepcopy(call)
        other = getattr(other_call, "_orig_mod", other_call)
        other_optimizer = optimizer_of(other)
        for seed in range(1, 3):
            seen += step(other_call, other, other_optimizer, seed)
            seen += copies(model)
            seen += step(call, model, optimizer, seed + 10)
            seen += copies(other)
        return seen

    check_same(script, swap_dir)


def test_weights_are_replaced(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(Net)
        call, optimizer = compile_model(model), optimizer_of(model)
        seen = step(call, model, optimizer, 0)
        weight = model.get_parameter("first.weight")
        weight.data = weight.detach() * 2
        seen += step(call, model, optimizer, 1)
        model.get_parameter("frozen.weight").data[0, 0] = 5
        seen += step(call, model, optimizer, 2)
        with torch.no_grad():
            weight.copy_(torch.ones_like(weight))
        return seen + step(call, model, optimizer, 3)

    (session,) = check_same(script, swap_dir)
    resting = [session.machine.homes.find(each) for _, each in session.registry]
    assert all(place is not None and place.home.tier is Tier.NVME for place in resting)


def test_weights_are_assigned_from_a_state_dict(swap_dir: Path) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(Net)
        call, optimizer = compile_model(model), optimizer_of(model)
        seen = step(call, model, optimizer, 0)
        given = {name: each.clone() + 1 for name, each in model.state_dict().items()}
        model.load_state_dict(given, assign=True)
        optimizer = optimizer_of(model)
        for seed in range(1, 3):
            seen += step(call, model, optimizer, seed)
        return seen

    check_same(script, swap_dir)


@pytest.mark.parametrize("moved_first", [True, False])
def test_a_run_goes_on_elsewhere(moved_first: bool, swap_dir: Path) -> None:
    """State dicts go from a run whose states move to a plain one, and the other way round."""
    backend = Backend()

    def train(model: nn.Module, call: Any, load: dict[str, Any] | None) -> dict[str, Any]:
        optimizer = optimizer_of(model)
        if load is not None:
            model.load_state_dict(load["model"])
            optimizer.load_state_dict(load["optimizer"])
        seen = [each for seed in range(3) for each in step(call, model, optimizer, seed)]
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen}

    def run(*, moved: bool, load: dict[str, Any] | None) -> dict[str, Any]:
        model = made(Net)
        return train(model, in_file(model, swap_dir, backend) if moved else model, load)

    want = run(moved=False, load=run(moved=False, load=None))
    first = run(moved=moved_first, load=None)
    got = run(moved=not moved_first, load=copy.deepcopy(first))
    torch.testing.assert_close(got["seen"], want["seen"], rtol=0, atol=0)
    states = [each["optimizer"]["state"] for each in (got, want)]
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


class Interrupted(Exception):
    """What a user's code raises in the middle of an iteration."""


@pytest.mark.parametrize("at", range(7))
def test_training_goes_on_after_an_error_in_the_middle(at: int, swap_dir: Path) -> None:
    """The error comes out of an operation in the middle of forward (0 to 3) or of backward."""

    def script(compile_model: Compile) -> list[Tensor]:
        torch.manual_seed(0)
        model = Observed(32, 3)
        call, optimizer, seen = compile_model(model), optimizer_of(model), list[Tensor]()
        seen += step(call, model, optimizer, 0)
        seen += interrupted(call, model, at)
        return seen + step(call, model, optimizer, 2)

    check_same(script, swap_dir)


def interrupted(call: Any, model: nn.Module, at: int) -> list[Tensor]:
    """Raise at one of the looks; return what the model then holds, gradients aside."""
    left = iter(range(at + 1))

    def interrupt() -> None:
        if next(left) == at:
            raise Interrupted

    with looking(interrupt), pytest.raises(Interrupted):
        loss_of(call, 1).backward()
    model.zero_grad()
    return copies(model)


@pytest.mark.parametrize("edit", ["step", "in place", "load_state_dict", "data"])
def test_edits_between_forward_and_backward_do_what_they_do_in_plain_pytorch(
    edit: str, swap_dir: Path
) -> None:
    def script(compile_model: Compile) -> list[Tensor]:
        model = made(Net)
        call, optimizer = compile_model(model), optimizer_of(model)
        seen = step(call, model, optimizer, 0)
        loss = loss_of(call, 1)
        match edit:
            case "step":
                optimizer.step()
            case "in place":
                with torch.no_grad():
                    model.get_parameter("last.weight").mul_(2)
            case "load_state_dict":
                model.load_state_dict(model.state_dict())
            case _:
                model.get_parameter("first.bias").data.mul_(2)  # behind autograd's back
        if edit == "data":
            loss.backward()
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
        return seen + copies(model)

    check_same(script, swap_dir)


def test_a_model_takes_over_the_code_of_one_that_has_gone(swap_dir: Path) -> None:
    backend = Backend()
    gone = made(Net)
    loss_of(in_file(gone, swap_dir, backend), 0)  # its backward is never compiled
    reference = weakref.ref(gone)
    del gone
    gc.collect()
    assert reference() is None
    model, plain = made(Net), made(Net)
    call = in_file(model, swap_dir, backend)
    optimizers = optimizer_of(model), optimizer_of(plain)
    for seed in range(2):
        got, want = step(call, model, optimizers[0], seed), step(plain, plain, optimizers[1], seed)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_nothing_is_left_of_a_model_that_goes(swap_dir: Path) -> None:
    backend, model = Backend(), made(Net)
    call, optimizer = in_file(model, swap_dir, backend), optimizer_of(model)
    for seed in range(2):
        step(call, model, optimizer, seed)
    (session,) = backend.sessions(model)
    gone = [weakref.ref(each) for each in (model, session, session.machine, *model.parameters())]
    (run,) = swap_dir.iterdir()
    assert (run / "extents.bin").stat().st_size > 0
    del model, call, optimizer, session
    gc.collect()
    assert [each() for each in gone] == [None] * len(gone)
    assert list(swap_dir.iterdir()) == []
