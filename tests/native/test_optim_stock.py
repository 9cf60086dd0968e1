"""Native updates give the bits of torch's own kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.native.optim_cases import FLAGS, Options, all_options, different, item, made
from tests.native.optim_stock import stock_step
from zcompile.runtime.native import Native
from zcompile.runtime.native_optim import Flag, Optimizers
from zcompile.runtime.optim_batch import batch
from zcompile.runtime.optim_formulas import Adam, Lion, Sgd
from zcompile.runtime.square_roots import mkl_roots

LANES = 8
"""Elements in a vector of torch's fused kernels: there are none for AVX-512."""

STOCK = [options for options in all_options() if not isinstance(options, Lion)]


def check(
    native: Native,
    options: Options,
    numel: int,
    *,
    isa: int = -1,
    special: bool = False,
    fused: bool = False,
    foreach: bool = False,
    grad_scale: float | None = None,
) -> None:
    assert not isinstance(options, Lion)
    ours = made(numel, 1, special=special)
    theirs = ours.clone()
    scale = None if grad_scale is None else torch.tensor(grad_scale)
    stock_step(options, theirs, fused=fused, foreach=foreach, grad_scale=scale)
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        formula = options.formula().with_flags(Flag.ROUND_TWICE)
    else:
        formula = options.formula()
    one = item(options, ours)
    if fused:
        formula = replace(formula, grad_divisor=grad_scale or 1.0)
        one.whole_vectors = numel // LANES * LANES
    else:
        formula = replace(formula, roots=mkl_roots())
    assert Optimizers(native).step(formula, batch([one]), isa=isa)
    if foreach:  # torch may use the gradient as scratch memory
        ours.grad = theirs.grad
    for own, stock in zip(ours.tensors(), theirs.tensors(), strict=True):
        assert different(own, stock) == 0, (options, numel, isa, fused, foreach)


@pytest.mark.parametrize("special", FLAGS, ids=["usual", "special"])
@pytest.mark.parametrize("way", ["single", "foreach"])
def test_default_and_foreach(native: Native, way: str, special: bool) -> None:
    for index, options in enumerate(STOCK):
        for numel in (*range(index % 11, 71, 11), 3003):
            check(native, options, numel, special=special, foreach=way == "foreach")


@pytest.mark.parametrize("special", FLAGS, ids=["usual", "special"])
@pytest.mark.parametrize("grad_scale", [None, 3.0])
def test_fused(native: Native, grad_scale: float | None, special: bool) -> None:
    for index, options in enumerate(each for each in STOCK if isinstance(each, Adam | Sgd)):
        for numel in (*range(index % 11, 71, 11), 3003):
            check(native, options, numel, special=special, fused=True, grad_scale=grad_scale)


def test_every_instruction_set(native: Native) -> None:
    for isa in native.isas.values():
        for options in STOCK[::3]:
            check(native, options, 1003, isa=isa)
            check(native, options, 1003, isa=isa, fused=isinstance(options, Adam | Sgd))


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_every_level_that_torch_can_be_told_to_use(capability: str) -> None:
    own = f"{Path(__file__)}"
    names = ("test_default_and_foreach", "test_fused", "test_every_instruction_set")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *(f"{own}::{name}" for name in names),
        ],
        check=True,
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
    )
