"""Every loop gives the bits of its reference, on every instruction set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.native.optim_cases import FLAGS, STEP, Options, State, all_options, different, item, made
from tests.native.optim_reference import Reference, fused_multiply_add
from zcompile.runtime.native import Native
from zcompile.runtime.native_optim import Flag, Optimizers
from zcompile.runtime.optim_batch import batch

OPTIONS = all_options()


def expected(options: Options, state: State, *, fma: bool, whole_vectors: int) -> State:
    """Return ``state`` after the update; what comes after ``whole_vectors`` is summed at once."""
    parts: list[list[np.ndarray]] = []
    for part, one_sum in ((slice(whole_vectors), False), (slice(whole_vectors, None), True)):
        param, grad, *states = (each[part].numpy().copy() for each in state.tensors())
        reference = Reference(param, grad, states, fma, one_sum)
        reference.step(options, STEP)
        parts.append([reference.param, grad, *reference.states])
    joined = [torch.from_numpy(np.concatenate(pair)) for pair in zip(*parts, strict=True)]
    return State(joined[0], joined[1], joined[2:])


def check(
    native: Native,
    options: Options,
    state: State,
    *,
    isas: Sequence[int],
    fma: bool = True,
    tail: int = 0,
) -> None:
    whole_vectors = state.param.numel() - tail
    wanted = expected(options, state, fma=fma, whole_vectors=whole_vectors)
    formula = options.formula().with_flags(Flag.NONE if fma else Flag.ROUND_TWICE)
    for isa in isas:
        own = state.clone()
        one = item(options, own)
        one.whole_vectors = whole_vectors
        assert Optimizers(native).step(formula, batch([one]), isa=isa)
        for ours, theirs in zip(own.tensors(), wanted.tensors(), strict=True):
            assert different(ours, theirs) == 0, (options, isa, fma, tail)


@pytest.mark.parametrize("special", FLAGS, ids=["usual", "special"])
@pytest.mark.parametrize("fma", FLAGS, ids=["twice", "once"])
def test_every_option_at_every_small_size(native: Native, special: bool, fma: bool) -> None:
    for index, options in enumerate(OPTIONS):
        for numel in (*range(index % 11, 71, 11), 300):
            state = made(numel, index, special=special)
            tail = numel % 8
            check(native, options, state, isas=list(native.isas.values()), fma=fma, tail=tail)


@pytest.mark.parametrize("offset", [1, 3, 7])
def test_tensors_that_begin_anywhere(native: Native, offset: int) -> None:
    for options in OPTIONS[:: len(OPTIONS) // 30]:
        state = made(333, offset, offset=offset)
        assert state.param.data_ptr() % 64 != 0
        # A clone would begin at the start of its memory.
        wanted = expected(options, state, fma=True, whole_vectors=333)
        assert Optimizers(native).step(options.formula(), batch([item(options, state)]))
        for ours, theirs in zip(state.tensors(), wanted.tensors(), strict=True):
            assert different(ours, theirs) == 0


def floats(numel: int) -> st.SearchStrategy[np.ndarray]:
    bits = hnp.arrays(np.uint32, numel, elements=st.integers(0, 2**32 - 1))
    return bits.map(lambda array: array.view(np.float32))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(OPTIONS), st.integers(0, 40))
def test_any_bits_at_all(native: Native, data: st.DataObject, options: Options, numel: int) -> None:
    arrays = [torch.from_numpy(data.draw(floats(numel)).copy()) for _ in range(5)]
    check(native, options, State(arrays[0], arrays[1], arrays[2:]), isas=[*native.isas.values()])


def test_the_reference_multiplies_and_adds_in_one_rounding() -> None:
    # The error of the product, alone: only what is rounded once sees it.
    one = np.float32(1) + np.float32(2**-12)
    square = one * one
    assert fused_multiply_add(one, one, -square) == np.float32(2**-24)
    # Just below the middle between two numbers: a sum rounded to double first goes up.
    step = np.float32(1 + 2**-23)
    assert fused_multiply_add(step, np.float32(2**-24), np.float32(1)) == np.float32(1 + 2**-23)
    assert fused_multiply_add(np.float32(2**-24), np.float32(1), np.float32(1)) == np.float32(1)
