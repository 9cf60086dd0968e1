"""How states and parameters are stored, in NumPy: random numbers, bf16, and codes of 8 bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zcompile.runtime.optim_batch import BLOCK

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]
U8 = npt.NDArray[np.uint8]
LANES = BLOCK // 8


def philox(counters: npt.NDArray[np.uint64], keys: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """Philox4x32-10 of counters of shape (4, ...); each word is in the low half of 64 bits."""
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c0, c1, c2, c3 = counters
    k0, k1 = (np.uint64(key) for key in keys)
    for _ in range(10):
        high0, low0 = np.uint64(0xD2511F53) * c0 >> shift, np.uint64(0xD2511F53) * c0 & mask
        high1, low1 = np.uint64(0xCD9E8D57) * c2 >> shift, np.uint64(0xCD9E8D57) * c2 & mask
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + np.uint64(0x9E3779B9) & mask, k1 + np.uint64(0xBB67AE85) & mask
    return np.stack([c0, c1, c2, c3])


def random_bits(numel: int, *, first: int, seed: int, step: int, stream: int, slot: int) -> U32:
    """Return 16 random bits for each element of a piece that begins at ``first``."""
    blocks = np.arange(first // BLOCK, -(-(first + numel) // BLOCK), dtype=np.uint64)
    made: list[U32] = []
    for block in blocks:
        counters = np.zeros((4, LANES), np.uint64)
        lane = np.arange(LANES, dtype=np.uint64)
        counters[0] = (block * np.uint64(LANES) + lane) & np.uint64(0xFFFFFFFF)
        counters[1] = np.uint64((int(block) >> 27) << 2 | slot)
        counters[2], counters[3] = np.uint64(stream), np.uint64(step)
        words = philox(counters, (seed & 0xFFFFFFFF, seed >> 32)).astype(np.uint32)
        halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=1)
        made.append(np.asarray(halves.reshape(-1), np.uint32))
    return np.concatenate(made)[:numel]


def to_bf16(values: F32, random: U32 | None) -> npt.NDArray[np.uint16]:
    bits = values.view(np.uint32).astype(np.uint64)
    if random is None:
        rounded = bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))
    else:
        rounded = np.where(np.isfinite(values), bits + random, bits)
    short = (rounded >> np.uint64(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), short)


def grid(*, signed: bool) -> npt.NDArray[np.float64]:
    """Return the values of the codes without a sign, in order."""
    codes = np.arange(128 if signed else 256)
    exponent, mantissa = codes >> 3, codes & 7
    bias = 15 if signed else 31
    usual = (1 + mantissa / 8) * 2.0 ** (exponent - bias)
    return np.where(exponent == 0, mantissa / 8 * 2.0 ** (1 - bias), usual)


def decoded(codes: U8, scales: F32, *, signed: bool) -> F32:
    values = grid(signed=signed)
    size = values[codes & (127 if signed else 255)].astype(np.float32)
    scaled = size * np.repeat(scales, BLOCK)[: len(codes)]
    negative = (codes >= 128) & np.bool_(signed)
    return np.asarray(np.where(negative, -scaled, scaled), np.float32)


def encoded(values: F32, random: U32 | None, *, signed: bool) -> tuple[U8, F32]:
    """Return codes and scales: each value goes to a neighbour on the grid."""
    codes = np.zeros(len(values), np.uint8)
    scales = np.zeros(-(-len(values) // BLOCK), np.float32)
    steps = grid(signed=signed)
    for index in range(len(scales)):
        at = slice(index * BLOCK, (index + 1) * BLOCK)
        size = np.abs(values[at])
        largest = size.max()
        scales[index] = 0 if largest < 2.0**-100 else largest / np.float32(1.875)
        inverse = np.float32(0) if scales[index] == 0 else np.float32(1) / scales[index]
        ratio = np.minimum((size * inverse).astype(np.float64), 1.875)
        below = np.searchsorted(steps, ratio, side="right") - 1
        above = np.minimum(below + 1, len(steps) - 1)
        width = np.where(above > below, steps[above] - steps[below], 1.0)
        part = (ratio - steps[below]) / width
        if random is None:
            up = (part > 0.5) | ((part == 0.5) & (below % 2 == 1))
        else:
            up = np.floor(part * 2.0**16) + random[at] >= 2.0**16
        code = np.where(up, above, below)
        if not signed:
            code = np.where((code == 0) & (ratio > 0), 1, code)
        sign = np.signbit(values[at]) & signed
        codes[at] = code + np.where(sign, 128, 0)
    return codes, scales
