"""Threads, cuts and company change nothing; a gradient that is not finite changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.native.optim_cases import State, item, made
from zcompile.runtime.native import Native, NativeError
from zcompile.runtime.native_optim import Flag, Formula, Optimizers, new_state
from zcompile.runtime.optim_batch import BLOCK, Item, batch
from zcompile.runtime.optim_formulas import Adam, Sgd
from zcompile.runtime.pool import Pool
from zcompile.runtime.square_roots import mkl_roots

ROOT = Path(__file__).parents[2]
ADAM = Adam(1.37e-2, weight_decay=0.013)
SIZES = (5, 70_007, 1, 0, 32_768, 256, 31, 33_001)


def formulas() -> dict[str, Formula]:
    usual = ADAM.formula()
    stochastic = replace(usual.with_flags(Flag.STOCHASTIC), seed=99, step=4)
    return {
        "plain": usual,
        "foreign roots": replace(usual, roots=mkl_roots()),
        "scaled": replace(usual, grad_factor=0.3, clip_factor=0.7),
        "stochastic": stochastic,
        "8 bits": stochastic,
    }


def stored(state: State, name: str, stream: int) -> Item:
    """Return ``state`` as an item, in the types that the formula ``name`` is about."""
    one = replace(item(ADAM, state), stream=stream)
    if name == "stochastic":
        one.param = state.param.bfloat16()
        one.states = [each.bfloat16() for each in state.states[:2]]
    if name == "8 bits":
        made_states = [new_state(state.param.numel(), torch.uint8) for _ in range(2)]
        one.states = [each for each, _ in made_states]
        one.scales = [each for _, each in made_states]
    return one


def contents(items: list[Item]) -> list[bytes]:
    tensors: list[Tensor | None] = []
    for one in items:
        tensors += [one.param, *one.states, *one.scales]
    return [each.view(torch.uint8).numpy().tobytes() for each in tensors if each is not None]


def cut(one: Item, at: list[int]) -> list[Item]:
    """Return ``one`` in pieces that end at the blocks ``at``."""
    numel = one.param.numel()
    ends = [*(each * BLOCK for each in sorted(set(at)) if 0 < each * BLOCK < numel), numel]
    pieces: list[Item] = []
    for start, stop in zip([0, *ends[:-1]], ends, strict=True):
        scales = [
            None if each is None else each[start // BLOCK : -(-stop // BLOCK)]
            for each in one.scales
        ]
        states = [None if each is None else each[start:stop] for each in one.states]
        pieces.append(
            replace(
                one,
                param=one.param[start:stop],
                grad=one.grad[start:stop],
                states=states,
                scales=scales,
                first=start,
            )
        )
    return pieces


def updated(name: str, run: Callable[[Formula, list[Item]], None]) -> list[bytes]:
    items = [stored(made(numel, 5), name, stream) for stream, numel in enumerate(SIZES)]
    run(formulas()[name], items)
    return contents(items)


@pytest.mark.parametrize("name", formulas())
def test_threads_and_cuts_change_nothing(native: Native, name: str) -> None:
    optimizers = Optimizers(native)

    def one_by_one(formula: Formula, items: list[Item]) -> None:
        for one in items:
            assert optimizers.step(formula, batch([one]))

    def together(threads: int) -> Callable[[Formula, list[Item]], None]:
        pool = Pool(native, threads)

        def run(formula: Formula, items: list[Item]) -> None:
            assert optimizers.step(formula, batch(items), pool)

        return run

    def in_pieces(formula: Formula, items: list[Item]) -> None:
        pieces = [piece for one in items for piece in cut(one, [1, 2, 7, 100, 200])]
        assert optimizers.step(formula, batch(pieces), Pool(native, 2))

    expected = updated(name, one_by_one)
    for way in (together(2), together(5), in_pieces):
        assert updated(name, way) == expected


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=8),
    st.lists(st.integers(0, 12), max_size=4),
    st.integers(1, 4),
    st.sampled_from(sorted(formulas())),
)
def test_any_cuts_of_any_tensors_change_nothing(
    native: Native, sizes: list[int], at: list[int], threads: int, name: str
) -> None:
    optimizers, formula = Optimizers(native), formulas()[name]
    whole = [stored(made(numel, 6), name, stream) for stream, numel in enumerate(sizes)]
    cuts = [stored(made(numel, 6), name, stream) for stream, numel in enumerate(sizes)]
    assert optimizers.step(formula, batch(whole))
    pieces = [piece for one in cuts for piece in cut(one, at)]
    assert optimizers.step(formula, batch(pieces), Pool(native, threads))
    assert contents(cuts) == contents(whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_one_gradient_that_is_not_finite_leaves_everything_as_it_was(
    native: Native, dtype: torch.dtype, value: float
) -> None:
    formula = ADAM.formula().with_flags(Flag.CHECK_FINITE)
    for isa in native.isas.values():
        for where in (0, 40_000, 40_006):
            items = [item(ADAM, made(numel, 7)) for numel in (3, 40_007)]
            for one in items:
                one.grad = torch.full_like(one.grad, 0.5).to(dtype)
            before = contents(items)
            items[1].grad[where] = value
            assert not Optimizers(native).step(formula, batch(items), Pool(native, 2), isa=isa)
            assert contents(items) == before
            items[1].grad[where] = torch.finfo(dtype).max
            assert Optimizers(native).step(formula, batch(items), Pool(native, 2), isa=isa)
            assert contents(items) != before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_sums_of_squares_have_one_order(native: Native, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(1)
    items = [
        Item(torch.zeros(numel), torch.randn(numel, generator=random).to(dtype)) for numel in SIZES
    ]
    optimizers, of = Optimizers(native), batch(items)
    expected = optimizers.square_sums(of)
    for isa in native.isas.values():
        for threads in (1, 2, 3):
            found = optimizers.square_sums(of, Pool(native, threads), isa=isa)
            assert np.array_equal(found, expected)
    exact = [float((one.grad.double() ** 2).sum()) for one in items]
    assert np.allclose(expected, exact, rtol=1e-12)


def test_thousands_of_small_tensors_in_one_call(native: Native) -> None:
    sizes = [1 + index * 37 % 400 for index in range(1000)]
    together = [made(numel, index) for index, numel in enumerate(sizes)]
    alone = [state.clone() for state in together]
    optimizers = Optimizers(native)
    formula = ADAM.formula()
    optimizers.step(formula, batch([item(ADAM, each) for each in together]), Pool(native, 2))
    for state in alone:
        optimizers.step(formula, batch([item(ADAM, state)]))
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.param, other.param)


def test_what_makes_no_sense_is_refused_before_anything_is_touched(native: Native) -> None:
    state = made(300, 1)
    optimizers = Optimizers(native)
    whole = item(ADAM, state)
    before = contents([whole])
    with pytest.raises(ValueError, match="items is empty"):
        batch([])
    with pytest.raises(ValueError, match="contiguous"):
        batch([replace(whole, grad=torch.zeros(600)[::2])])
    with pytest.raises(ValueError, match="of 300 elements"):
        batch([replace(whole, grad=torch.zeros(299))])
    with pytest.raises(ValueError, match="float64"):
        batch([replace(whole, grad=state.grad.double())])
    with pytest.raises(ValueError, match="differ in their types"):
        batch([whole, replace(whole, grad=state.grad.bfloat16())])
    with pytest.raises(ValueError, match="one fp32 number for each 256"):
        batch([replace(whole, states=[torch.zeros(300, dtype=torch.uint8)] * 2)])
    for formula, one in (
        (ADAM.formula(), replace(whole, states=whole.states[:1])),
        (Sgd(momentum=0.9).formula(), replace(whole, states=[])),
        (Sgd().formula(), whole),
        (ADAM.formula().with_flags(Flag.STOCHASTIC), replace(whole, first=100)),
        (ADAM.formula(), replace(whole, first=-1)),
    ):
        with pytest.raises(NativeError, match="Invalid argument"):
            optimizers.step(formula, batch([one]))
    with pytest.raises(NativeError, match="Invalid argument"):
        optimizers.step(ADAM.formula(), batch([whole]), isa=17)
    assert contents([whole]) == before


THREADS_OF_A_CALL = """
import os, threading
from dataclasses import replace
import torch
from tests.native.optim_cases import item, made
from zcompile.runtime.native import load
from zcompile.runtime.native_optim import Optimizers
from zcompile.runtime.optim_batch import batch
from zcompile.runtime.optim_formulas import Adam
from zcompile.runtime.square_roots import mkl_roots
from zcompile.runtime.pool import Pool

torch.set_num_threads(1)  # for the threads that torch knows, which ours are not
options, native = Adam(1e-3), load()
formula = replace(options.formula(), roots=mkl_roots())
tensors = batch([item(options, made(200_000, 5))])
pool = Pool(native, 2)
Optimizers(native).step(replace(formula, roots=None), tensors, pool)
own = len(os.listdir("/proc/self/task"))

def run():
    Optimizers(native).step(formula, tensors, pool)
    counts.append(len(os.listdir("/proc/self/task")))

counts = []
thread = threading.Thread(target=run)
thread.start()
thread.join()
print(counts[0] - own)
"""


def test_foreign_roots_start_no_threads_of_their_own(native: Native) -> None:
    assert native is not None
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    ran = subprocess.run(
        [sys.executable, "-c", THREADS_OF_A_CALL],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "1"), ran.stderr  # the one that calls
