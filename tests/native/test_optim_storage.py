"""What is stored in fewer bits: the update is the same, and only storing it rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.native.optim_cases import State, different, item, made
from tests.native.optim_storage import decoded, encoded, grid, philox, random_bits, to_bf16
from zcompile.runtime.native import Native, NativeError
from zcompile.runtime.native_optim import Flag, Optimizers, new_state
from zcompile.runtime.optim_batch import BLOCK, Item, batch
from zcompile.runtime.optim_formulas import Adam, Lion, Sgd

ADAM = Adam(1.37e-2, weight_decay=0.013, decoupled=True, amsgrad=True)
SEED, STEP = 0x123456789ABCDEF0, 7
SIZES = (1, 7, 63, 255, 256, 257, 1000, 3001)


def test_the_random_numbers_are_the_published_ones() -> None:
    # Known answers of the authors' library, Random123.
    zeros = philox(np.zeros((4, 1), np.uint64), (0, 0))[:, 0]
    assert [hex(word) for word in zeros] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    ones = philox(np.full((4, 1), 0xFFFFFFFF, np.uint64), (0xFFFFFFFF, 0xFFFFFFFF))[:, 0]
    assert [hex(word) for word in ones] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


def plain_update(
    native: Native, state: State, *, factors: tuple[float, float] = (1.0, 1.0)
) -> None:
    """Update ``state``, all in fp32, with the gradient scaled beforehand."""
    for factor in factors:
        state.grad *= factor
    assert Optimizers(native).step(ADAM.formula(), batch([item(ADAM, state)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("special", [False, True], ids=["usual", "special"])
def test_gradients_parameters_and_copies_of_every_type(
    native: Native, dtype: torch.dtype, special: bool
) -> None:
    for isa in native.isas.values():
        for numel in SIZES:
            state = made(numel, 1, special=special)
            grad, param = state.grad.to(dtype), state.param.to(dtype)
            exact = State(param.float(), grad.float(), state.states)
            wanted = exact.clone()
            plain_update(native, wanted, factors=(0.125, 0.77))
            out = None if dtype is torch.float32 else torch.zeros(numel, dtype=dtype)
            one = replace(item(ADAM, state), param=param, grad=grad, out=out)
            formula = replace(ADAM.formula(), grad_factor=0.125, clip_factor=0.77)
            assert Optimizers(native).step(formula, batch([one]), isa=isa)
            for ours, theirs in zip(state.states, wanted.states, strict=True):
                assert different(ours, theirs) == 0
            assert same_values(param, wanted.param.to(dtype))
            assert out is None or same_values(out, wanted.param.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_master_takes_what_was_changed_in_its_copy(native: Native, dtype: torch.dtype) -> None:
    formula = ADAM.formula().with_flags(Flag.FOLLOW)
    for isa in native.isas.values():
        for numel in SIZES:
            state = made(numel, 4)
            out = state.param.to(dtype)
            other = torch.randn(numel).to(dtype)
            changed = (torch.arange(numel) % 3 == 1) & (other != out)
            out[changed] = other[changed]
            wanted = state.clone()
            wanted.param = torch.where(changed, out.float(), state.param)
            plain_update(native, wanted)
            one = replace(item(ADAM, state), out=out)
            assert Optimizers(native).step(formula, batch([one]), isa=isa)
            for ours, theirs in zip(state.tensors(), wanted.tensors(), strict=True):
                assert different(ours, theirs) == 0
            assert same_values(out, wanted.param.to(dtype))
    with pytest.raises(NativeError):
        Optimizers(native).step(formula, batch([item(ADAM, made(7, 4))]))


def test_short_gradients_are_divided_and_not_written(native: Native) -> None:
    for numel in SIZES:
        state = made(numel, 5)
        short, wanted = state.grad.bfloat16(), state.clone()
        wanted.grad = short.float() / 3.0
        plain_update(native, wanted)
        one = replace(item(ADAM, state), grad=short)
        before = short.clone()
        assert Optimizers(native).step(replace(ADAM.formula(), grad_divisor=3.0), batch([one]))
        assert torch.equal(short, before)
        assert different(state.param, wanted.param) == 0


def same_values(one: Tensor, other: Tensor) -> bool:
    nan = one.isnan() & other.isnan()
    bits = torch.int32 if one.itemsize == 4 else torch.int16
    return bool(((one.view(bits) == other.view(bits)) | nan).all())


@pytest.mark.parametrize("stochastic", [False, True])
def test_states_and_parameters_in_bf16(native: Native, stochastic: bool) -> None:
    flags = Flag.STOCHASTIC if stochastic else Flag.NONE
    formula = replace(ADAM.formula().with_flags(flags), seed=SEED, step=STEP)
    for isa in native.isas.values():
        for numel in SIZES:
            state = made(numel, 2)
            halves = [each.bfloat16() for each in state.tensors()]
            short = State(halves[0], halves[1], halves[2:])
            wanted = State(short.param.float(), short.grad.float(), [])
            wanted.states = [each.float() for each in short.states]
            plain_update(native, wanted)
            one = replace(item(ADAM, short), first=4 * BLOCK, stream=3)
            assert Optimizers(native).step(formula, batch([one]), isa=isa)
            stored = [short.param, *short.states]
            exact = [wanted.param, *wanted.states]
            for slot, (ours, theirs) in enumerate(zip(stored, exact, strict=True)):
                random = random_bits(
                    numel, first=4 * BLOCK, seed=SEED, step=STEP, stream=3, slot=slot
                )
                expected = to_bf16(theirs.numpy(), random if stochastic else None)
                assert np.array_equal(ours.view(torch.int16).numpy().view(np.uint16), expected)


def test_stochastic_rounding_has_no_bias(native: Native) -> None:
    numel, steps = 4096, 400
    param = torch.ones(numel, dtype=torch.bfloat16)
    grad = torch.full((numel,), -1.0)
    options = Sgd(lr=2.0**-12)  # a sixteenth of the distance between neighbours
    for step in range(steps):
        one = Item(param, grad, step_size=options.lr)
        formula = replace(options.formula().with_flags(Flag.STOCHASTIC), seed=1, step=step)
        Optimizers(native).step(formula, batch([one]))
    moved = param.float().mean() - 1
    # The mean of 4096 walks of 400 steps; its standard deviation is 6 per mille of this.
    assert abs(moved / (steps * options.lr) - 1) < 0.05
    plain = torch.ones(numel, dtype=torch.bfloat16)
    Optimizers(native).step(options.formula(), batch([Item(plain, grad, step_size=options.lr)]))
    assert torch.equal(plain, torch.ones_like(plain))


@pytest.mark.parametrize("stochastic", [False, True])
def test_states_in_8_bits(native: Native, stochastic: bool) -> None:
    flags = Flag.STOCHASTIC if stochastic else Flag.NONE
    options = replace(ADAM, amsgrad=False)
    formula = replace(options.formula().with_flags(flags), seed=SEED, step=STEP)
    for isa in native.isas.values():
        for numel in SIZES:
            state = made(numel, 3)
            codes = [torch.randint(0, 256, (numel,), dtype=torch.uint8) for _ in range(2)]
            scales = [torch.rand(-(-numel // BLOCK)) * 1e-3 for _ in range(2)]
            wanted = state.clone()
            for slot in range(2):
                values = decoded(codes[slot].numpy(), scales[slot].numpy(), signed=slot == 0)
                wanted.states[slot] = torch.from_numpy(values)
            assert Optimizers(native).step(options.formula(), batch([item(options, wanted)]))
            one = replace(item(options, state), states=[*codes, None], scales=scales)
            assert Optimizers(native).step(formula, batch([one]), isa=isa)
            assert different(state.param, wanted.param) == 0
            for slot in range(2):
                random = random_bits(numel, first=0, seed=SEED, step=STEP, stream=0, slot=slot + 1)
                expected = encoded(
                    wanted.states[slot].numpy(), random if stochastic else None, signed=slot == 0
                )
                assert np.array_equal(codes[slot].numpy(), expected[0]), (isa, numel, slot)
                assert np.array_equal(scales[slot].numpy(), expected[1]), (isa, numel, slot)


@settings(max_examples=60, deadline=None)
@example([3.19014739e38])  # one over its scale is no normal number
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=600)
)
def test_errors_of_8_bits_are_bounded(native: Native, values: list[float]) -> None:
    """The momentum of Lion and the sum of Adagrad are stored as they are given."""
    wanted = torch.tensor(values, dtype=torch.float32)
    codes, scales = new_state(len(values), torch.uint8)
    assert scales is not None
    # The momentum becomes the gradient: 0 times the old one plus 1 times this.
    options = Lion(lr=0.0, betas=(0.0, 0.0))
    one = Item(torch.zeros_like(wanted), wanted, [codes], scales=[scales])
    Optimizers(native).step(options.formula(), batch([one]))
    back = decoded(codes.numpy(), scales.numpy(), signed=True).astype(np.float64)
    exact = wanted.numpy().astype(np.float64)
    scale = np.repeat(scales.numpy(), BLOCK)[: len(values)].astype(np.float64)
    # A sixteenth, and a little for the rounding of the scale.
    bound = np.maximum(np.abs(exact) / 16, scale * 2.0**-18) * (1 + 1e-6)
    tiny = np.abs(exact) < 2.0**-99
    assert np.all((np.abs(back - exact) <= bound) | tiny)


def test_codes_cover_what_the_documentation_says() -> None:
    for signed, smallest in ((True, 2.0**-17), (False, 2.0**-33)):
        values = grid(signed=signed)
        assert np.all(np.diff(values) > 0)
        assert values[-1] == 1.875
        assert values[1] == smallest


def test_a_second_moment_never_becomes_zero(native: Native) -> None:
    options = Adam()
    numel = 2 * BLOCK
    grad = torch.full((numel,), 1e-6)
    grad[0] = 1.0
    states = [new_state(numel, torch.uint8) for _ in range(2)]
    one = Item(
        torch.zeros(numel),
        grad,
        [state for state, _ in states],
        step_size=options.step_size(1),
        denom_divisor=options.denom_divisor(1),
        scales=[scale for _, scale in states],
    )
    Optimizers(native).step(options.formula(), batch([one]))
    assert states[1][0].min() > 0


def test_blocks_that_are_not_finite_stay_so(native: Native) -> None:
    numel = 2 * BLOCK
    grad = torch.ones(numel)
    grad[3] = float("inf")
    codes, scales = new_state(numel, torch.uint8)
    options = Lion(lr=0.0, betas=(0.0, 0.0))
    one = Item(torch.zeros(numel), grad, [codes], scales=[scales])
    Optimizers(native).step(options.formula(), batch([one]))
    assert scales is not None
    assert torch.isfinite(scales).tolist() == [False, True]
