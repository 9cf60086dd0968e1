"""Updates that begin while backward runs: the same bits in every loop, and really begun."""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

import zcompile
from tests.e2e.jobs import same_bits
from tests.e2e.loops_early import (
    FORETOLD,
    NEVER,
    OPTIMIZERS,
    SURPRISING,
    Iterate,
    Trainee,
    clipping_by_ours,
    plain,
)
from tests.machines.slow import slow
from tests.optim.twins import Make
from tests.runtime.conftest import USABLE
from zcompile.backend import Backend, zinf_backend
from zcompile.ir import Tier
from zcompile.machines import render_machine
from zcompile.runtime.cpu import CpuExecutor
from zcompile.runtime.errors import StorageError
from zcompile.runtime.executor import Kernels, NativeUpdates
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.fuzz import FuzzExecutor
from zcompile.runtime.machine import MakeExecutor
from zcompile.runtime.native import NATIVE_VARIABLE
from zcompile.session import Session

ITERATIONS = 10
BUDGET = 6 << 20
"""Of six layers of 100 KiB each, with a window that takes one of them."""

ALL_AWAY = dict.fromkeys(("parameters", "gradients", "optimizer"), "nvme")
NUM_PARAMETERS = 12

Result = tuple[list[Tensor], dict[str, Tensor]]


def trainee(
    folder: Path,
    make: Make = OPTIMIZERS["adamw"],
    make_executor: MakeExecutor = CpuExecutor,
    backend: Backend | None = None,
    **options: Any,
) -> tuple[Trainee, Session]:
    backend = backend or Backend(make_executor)
    options = {
        "compute": "eager",
        "nvme_dir": folder,
        "device_budget": BUDGET,
        "place": ALL_AWAY,
        "early_update": True,
        **options,
    }
    made = Trainee.of(lambda model: torch.compile(model, backend=backend, options=options), make)
    plain(made, -1)
    (session,) = backend.sessions(made.model)
    return made, session


def in_plain_pytorch(iterate: Iterate, make: Make = OPTIMIZERS["adamw"]) -> Result:
    made = Trainee.of(lambda model: model, make)
    plain(made, -1)
    return run(made, iterate)


def run(of: Trainee, iterate: Iterate) -> Result:
    """Return all losses, and all tensors at the end: who looks at them before touches them."""
    losses = [iterate(of, number).detach().clone() for number in range(ITERATIONS)]
    return losses, {name: tensor.clone() for name, tensor in of.contents()}


def check_alike(ours: Result, theirs: Result) -> None:
    assert all(map(same_bits, ours[0], theirs[0]))
    assert ours[1].keys() == theirs[1].keys()
    different = [name for name, each in ours[1].items() if not same_bits(each, theirs[1][name])]
    assert different == []


def rarely(loops: Mapping[str, Iterate], *slow: str) -> list[Any]:
    """Return the names of ``loops``, of which those called ``slow`` run with the slow tests."""
    return [pytest.param(loop, marks=pytest.mark.slow if loop in slow else ()) for loop in loops]


def fates(session: Session) -> Mapping[str, int]:
    return session.early_updates


@pytest.mark.parametrize(
    ("loop", "optimizer"),
    [
        pytest.param(loop, optimizer, marks=() if "adamw" in optimizer else pytest.mark.slow)
        for loop, optimizer in product(FORETOLD, OPTIMIZERS)
    ],
)
def test_what_is_foretold_is_adopted(loop: str, optimizer: str, swap_dir: Path) -> None:
    make = OPTIMIZERS[optimizer]
    of, session = trainee(swap_dir, make)
    check_alike(run(of, FORETOLD[loop]), in_plain_pytorch(FORETOLD[loop], make))
    # The first step makes states, the next two prove what is foretold.
    assert fates(session) == {"adopted": NUM_PARAMETERS * (ITERATIONS - 2)}


@pytest.mark.parametrize("loop", rarely(SURPRISING, "accumulates late", "steps left out"))
def test_what_was_not_foretold_is_made_again(loop: str, swap_dir: Path) -> None:
    of, session = trainee(swap_dir)
    check_alike(run(of, SURPRISING[loop]), in_plain_pytorch(SURPRISING[loop]))
    assert fates(session)["made again"] > 0
    assert fates(session)["adopted"] > 0


@pytest.mark.parametrize("loop", rarely(NEVER, "accumulates", "rates turn before the step"))
def test_where_nothing_can_be_foretold_nothing_begins(loop: str, swap_dir: Path) -> None:
    of, session = trainee(swap_dir)
    check_alike(run(of, NEVER[loop]), in_plain_pytorch(NEVER[loop]))
    assert fates(session) == {}


@pytest.mark.parametrize("slowness", [1.0, 1e3], ids=["copies decide", "kernels decide"])
def test_with_auto_they_begin_where_it_pays(slowness: float, swap_dir: Path) -> None:
    file = swap_dir / "machine.json"
    file.write_text(render_machine(slow(slowness)))
    of, session = trainee(swap_dir, early_update="auto", target=str(file))
    check_alike(run(of, plain), in_plain_pytorch(plain))
    assert (session.early_bytes > 0) == (slowness > 1)
    adopted = {"adopted": NUM_PARAMETERS * (ITERATIONS - 2)} if slowness > 1 else {}
    assert fates(session) == adopted


def test_our_clipping_is_not_foretold_either(swap_dir: Path) -> None:
    results: list[Result] = []
    for early in (True, False):
        torch.compiler.reset()
        of, session = trainee(swap_dir, early_update=early)
        results.append(run(of, clipping_by_ours))
        assert fates(session) == {}
    check_alike(*results)


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(loop, marks=() if loop in ("plain", "backward fails") else pytest.mark.slow)
        for loop in (*FORETOLD, *SURPRISING)
    ],
)
def test_late_copies_and_spoilt_memory_change_no_bit(loop: str, swap_dir: Path) -> None:
    iterate = {**FORETOLD, **SURPRISING}[loop]
    of, session = trainee(swap_dir, make_executor=partial(FuzzExecutor, seed=3))
    check_alike(run(of, iterate), in_plain_pytorch(iterate))
    assert fates(session)["adopted"] > 0


@pytest.mark.parametrize("io", USABLE)
def test_however_files_are_read_and_written(io: FileIO, swap_dir: Path) -> None:
    of, session = trainee(swap_dir, io=io.value)
    check_alike(run(of, plain), in_plain_pytorch(plain))
    # Through the page cache it cannot be told who else has written there.
    assert bool(fates(session)) is (io is not FileIO.BUFFERED)


def test_without_the_native_library_nothing_begins(
    swap_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NATIVE_VARIABLE, "0")
    of, session = trainee(swap_dir)
    check_alike(run(of, plain), in_plain_pytorch(plain))
    assert fates(session) == {}


def test_without_being_asked_nothing_begins(swap_dir: Path) -> None:
    of, session = trainee(swap_dir, early_update=False)
    check_alike(run(of, plain), in_plain_pytorch(plain))
    assert fates(session) == {}


class Unlucky(CpuExecutor):
    """Has one early update fail, at its begin or after its last write."""

    def __init__(self, *args: Any, code: int, left: list[str]) -> None:
        super().__init__(*args)
        self._code = code
        self._left = left

    def prepare(self) -> None:
        super().prepare()
        self._fail("begin")

    def stream(self, kernels: Kernels, native: NativeUpdates) -> bool:
        done = super().stream(kernels, native)
        self._fail("end")
        return done

    def _fail(self, at: str) -> None:
        if threading.current_thread() is not threading.main_thread() and at in self._left:
            self._left.remove(at)
            raise StorageError.during(
                "write", self._code, file=Path("extents"), offset=0, nbytes=1, label="0.weight"
            )


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("at", ["begin", "end"])
def test_a_write_that_fails_costs_only_the_early_update(at: str, code: int, swap_dir: Path) -> None:
    left = [at]
    of, session = trainee(swap_dir, make_executor=partial(Unlucky, code=code, left=left))
    check_alike(run(of, plain), in_plain_pytorch(plain))
    assert left == []
    found = fates(session)
    assert found["failed"] > 0
    assert found["failed"] + found["adopted"] == NUM_PARAMETERS * (ITERATIONS - 2)


def test_nobody_sees_the_new_before_the_step(swap_dir: Path) -> None:
    """Hooks before the step and a state dict read what the step will replace."""
    seen: dict[bool, list[Tensor]] = {True: [], False: []}

    def looking(of: Trainee, number: int, *, ours: bool) -> Tensor:
        of.optimizer.zero_grad()
        loss = of.loss(number)
        loss.backward()
        if number == ITERATIONS - 1:  # looking is touching: updates are then made again
            states = of.optimizer.state_dict()["state"]
            seen[ours] += [each["exp_avg"].clone() for each in states.values()]
            seen[ours] += [each["step"].clone() for each in states.values()]

            def look(*_: object) -> None:
                seen[ours].extend(each.detach().clone() for each in of.model.parameters())

            handle = of.optimizer.register_step_pre_hook(look)
            of.optimizer.step()
            handle.remove()
        else:
            of.optimizer.step()
        return loss

    of, session = trainee(swap_dir)
    ours = run(of, partial(looking, ours=True))
    check_alike(ours, in_plain_pytorch(partial(looking, ours=False)))
    assert all(map(same_bits, seen[True], seen[False]))
    assert fates(session)["made again"] == NUM_PARAMETERS


def test_two_optimizers_adopt_what_is_theirs(swap_dir: Path) -> None:
    def split(of: Trainee) -> Trainee:
        params = list(of.model.parameters())
        halves = (params[:5], params[5:])
        optimizers = tuple(AdamW(half, lr=1e-2 * (1 + at)) for at, half in enumerate(halves))
        return Trainee(of.model, of.compiled, optimizers, ())

    def iterate(of: Trainee, number: int) -> Tensor:
        for optimizer in of.optimizers:
            optimizer.zero_grad()
        loss = of.loss(number)
        loss.backward()
        for optimizer in of.optimizers:
            optimizer.step()
        return loss

    of, session = trainee(swap_dir)
    theirs = Trainee.of(lambda model: model, OPTIMIZERS["adamw"])
    plain(theirs, -1)
    check_alike(run(split(of), iterate), run(split(theirs), iterate))
    assert fates(session)["adopted"] > 0
    assert "made again" not in fates(session)


def test_the_budget_holds_and_the_account_says_what_began(swap_dir: Path) -> None:
    of, session = trainee(swap_dir, backend=zinf_backend)
    run(of, plain)
    stats = zcompile.stats(of.compiled)
    assert stats.total.peak_bytes[Tier.DEVICE] <= stats.planned_peak_bytes <= BUDGET
    assert f"begun while backward ran: {fates(session)['adopted']} adopted" in str(stats)


def test_what_began_and_is_not_asked_for_leaves_nothing(swap_dir: Path) -> None:
    of, session = trainee(swap_dir)
    run(of, plain)
    of.optimizer.zero_grad()
    of.loss(0).backward()  # updates have begun, and there is no step
    session.takeover.close()
    assert not [each for each in threading.enumerate() if each.name == "zinf-early-update"]
    of.model.zero_grad()
    params = sum(each.nbytes for each in of.model.parameters())
    file = session.machine.homes.lease(1, "a look at the file").file
    assert file.leased_bytes < 3.2 * params + (1 << 20)
