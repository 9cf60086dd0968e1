"""Time native AdamW against torch's, DeepSpeed's and against memory itself.

    python benchmarks/optimizers.py
    python benchmarks/optimizers.py --large 20_000_000 --repeats 5 --threads 1

Rows are medians of alternating runs; the lines of bars give the other's time over ours, the
median of the rounds with a 95 % interval.  Ours includes reading where all tensors are and what
their step sizes are, from a batch that is kept; "batch anew" also makes it, as a session does of
pieces that travel.  DeepSpeed is timed where it is installed: see `peers/README.md`.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from bar import Bar, ratios
from peers import cpu_adam
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW

from zcompile.runtime.build import native_recipe
from zcompile.runtime.native import Native, load
from zcompile.runtime.native_optim import Optimizers, new_state
from zcompile.runtime.optim_batch import BLOCK, Item, batch
from zcompile.runtime.optim_formulas import Adam
from zcompile.runtime.pool import Pool

Times = Mapping[str, Sequence[float]]
OPTIONS = Adam(1e-3, weight_decay=0.01, decoupled=True)
STEP = 5
REST_S = 0.05


@dataclass(slots=True)
class Bench:
    """The library, its threads, and how often to measure."""

    optimizers: Optimizers
    pool: Pool
    repeats: int

    def seconds(self, runs: Mapping[str, Callable[[], object]]) -> Times:
        """Return the seconds of each of ``runs``, which take turns, every other round backwards.

        Each begins when the threads of the one before are asleep: those of OpenMP go on spinning
        for some milliseconds, on the processors that the next one is to have.
        """
        names = list(runs)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(self.repeats + 1):
            for name in names if number % 2 else reversed(names):
                time.sleep(REST_S)
                start = time.perf_counter()
                runs[name]()
                seconds[name].append(time.perf_counter() - start)
        return {name: each[1:] for name, each in seconds.items()}

    def step(self, items: Sequence[Item]) -> None:
        assert self.optimizers.step(OPTIONS.formula(), batch(items), self.pool)

    def stepping(self, items: Sequence[Item]) -> Callable[[], None]:
        """Return what updates ``items`` as a training loop does that keeps their batch."""
        kept = batch(items)

        def step() -> None:
            step_size, divisor = OPTIONS.step_size(STEP), OPTIONS.denom_divisor(STEP)
            kept.set_step_sizes([step_size] * len(items), [divisor] * len(items))
            assert self.optimizers.step(OPTIONS.formula(), kept, self.pool)

        return step


def item(param: Tensor, grad: Tensor, **others: Tensor) -> Item:
    """Return fp32 moments and ``param`` as an item; ``out`` may come with it."""
    states = [torch.zeros(param.numel(), dtype=torch.float32) for _ in range(2)]
    return sized(Item(param, grad, states, out=others.get("out")))


def sized(one: Item) -> Item:
    one.step_size, one.denom_divisor = OPTIONS.step_size(STEP), OPTIONS.denom_divisor(STEP)
    return one


def torch_optimizer(items: Sequence[Item], **way: bool) -> AdamW:
    """Return torch's optimizer over the same memory."""
    params = [Parameter(one.param) for one in items]
    optimizer = AdamW(params, lr=OPTIONS.lr, weight_decay=OPTIONS.weight_decay, **way)
    for param, one in zip(params, items, strict=True):
        if one.grad.dtype is param.dtype:
            param.grad = one.grad
        moments = zip(("exp_avg", "exp_avg_sq"), one.states, strict=True)
        optimizer.state[param] = {"step": torch.tensor(STEP - 1.0), **dict(moments)}
    return optimizer


def stream_of(pool: Pool, one: Item) -> Callable[[], None]:
    """Return what moves the bytes of an update of ``one`` through memory."""
    folder = tempfile.mkdtemp()
    library = Path(folder) / "stream.so"
    source = Path(__file__).with_name("adam_stream.cpp")
    compiler = native_recipe().compiler
    flags = ("-O3", "-march=native", "-shared", "-fPIC")
    subprocess.run([*compiler, *flags, str(source), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).adam_stream
    numel = one.param.numel()
    tensors = [one.param, one.grad, *(state for state in one.states if state is not None)]
    share = -(-numel // (pool.num_threads * 16)) * 16

    def chunk(index: int) -> None:
        start = index * share
        addresses = [ctypes.c_void_p(each.data_ptr() + 4 * start) for each in tensors]
        function(*addresses, ctypes.c_int64(min(share, numel - start)))

    return lambda: pool.run(pool.num_threads, chunk)


def one_large(bench: Bench, numel: int) -> Times:
    one = item(torch.randn(numel), torch.randn(numel))
    runs: dict[str, Callable[[], object]] = {
        "ours": bench.stepping([one]),
        "torch fused": torch_optimizer([one], fused=True).step,
        "stream": stream_of(bench.pool, one),
    }
    return bench.seconds(runs)


def many_small(bench: Bench, numel: int, num_tensors: int) -> Times:
    each = numel // num_tensors
    items = [item(torch.randn(each), torch.randn(each)) for _ in range(num_tensors)]
    whole = item(torch.randn(numel), torch.randn(numel))
    runs: dict[str, Callable[[], object]] = {
        "ours": bench.stepping(items),
        "ours, batch anew": lambda: bench.step(items),
        "ours, one tensor": bench.stepping([whole]),
        "torch fused": torch_optimizer(items, fused=True).step,
        "torch default": torch_optimizer(items).step,
    }
    if cpu_adam.is_here():
        runs["DeepSpeed"] = cpu_adam.optimizer_over(items, OPTIONS.lr, OPTIONS.weight_decay).step
    return bench.seconds(runs)


def half_in_and_out(bench: Bench, numel: int) -> Times:
    grad, out = torch.randn(numel).bfloat16(), torch.zeros(numel, dtype=torch.bfloat16)
    one = item(torch.randn(numel), grad, out=out)
    wide = torch.empty(numel)
    optimizer = torch_optimizer([one], fused=True)
    (param,) = optimizer.param_groups[0]["params"]

    def with_passes() -> None:
        param.grad = wide.copy_(grad)
        optimizer.step()
        out.copy_(param.detach())

    runs: dict[str, Callable[[], object]] = {
        "ours": bench.stepping([one]),
        "torch fused, passes": with_passes,
    }
    if cpu_adam.is_here():
        theirs = cpu_adam.optimizer_over([one], OPTIONS.lr, OPTIONS.weight_decay)
        runs["DeepSpeed, passes"] = cpu_adam.with_passes(theirs, grad, wide, out)
    return bench.seconds(runs)


def in_8_bits(bench: Bench, numel: int) -> Times:
    grad, out = torch.randn(numel).bfloat16(), torch.zeros(numel, dtype=torch.bfloat16)
    wide = item(torch.randn(numel), grad, out=out)
    made = [new_state(numel, torch.uint8) for _ in range(2)]
    short = sized(
        Item(
            wide.param,
            grad,
            [state for state, _ in made],
            scales=[scales for _, scales in made],
            out=out,
        )
    )
    runs: dict[str, Callable[[], object]] = {
        "ours": bench.stepping([short]),
        "fp32 states": bench.stepping([wide]),
    }
    return bench.seconds(runs)


def moved_bytes(state_bytes: float) -> float:
    """Bytes an element that are read and written: fp32 master, bf16 gradient and copy."""
    return 4 + 4 + 2 + 2 + 2 * 2 * state_bytes


def report(title: str, times: Times, numel: int) -> None:
    print(f"\n{title}")
    for name, each in times.items():
        ratio = "" if name == "ours" else f"  {median(ratios(each, times['ours'])):6.2f} x ours"
        print(f"  {name:22} {median(each) * 1e9 / numel:7.3f} ns/parameter{ratio}")


def bars_of_one_large(times: Times, threads: int) -> None:
    what = f"one large tensor, {threads} threads:"
    Bar(f"{what} torch fused / ours", 1.0).show(ratios(times["torch fused"], times["ours"]))
    Bar(f"{what} Adam-shaped stream / ours", 0.95).show(ratios(times["stream"], times["ours"]))


def bars_of_many_small(times: Times, threads: int) -> None:
    what, bound = f"many small tensors, {threads} threads:", 1.35 if threads == 1 else 1.8
    for rival in ("torch fused", "DeepSpeed"):
        if rival in times:
            Bar(f"{what} {rival} / ours", bound).show(ratios(times[rival], times["ours"]))
    several = ratios(times["ours"], times["ours, one tensor"])
    Bar(f"{what} ours / ours in one tensor", 1.05, at_least=False).show(several)


def bars_of_half(times: Times, threads: int) -> None:
    rivals = [name for name in times if name != "ours"]
    best = min(rivals, key=lambda name: median(times[name]))
    what = f"bf16 in and out, {threads} threads: {best} / ours"
    Bar(what, 1.6).show(ratios(times[best], times["ours"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--large", type=int, default=100_000_000)
    parser.add_argument("--small", type=int, default=10_000_000)
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    native = load()
    if not isinstance(native, Native):
        print(f"no native library: {native.reason}")
        return 1
    print(f"best instruction set: {list(native.isas)[-1]}")
    for threads in given.threads:
        torch.set_num_threads(threads)
        if cpu_adam.is_here():
            cpu_adam.set_threads(threads)
        bench = Bench(Optimizers(native), Pool(native, threads), given.repeats)
        plural = "" if threads == 1 else "s"
        print(f"\n== {threads} thread{plural}")
        large = one_large(bench, given.large)
        report(f"{given.large} in one tensor", large, given.large)
        bars_of_one_large(large, threads)
        small = many_small(bench, given.small, given.tensors)
        report(f"{given.small} in {given.tensors} tensors", small, given.small)
        bars_of_many_small(small, threads)
        half = half_in_and_out(bench, given.small)
        report(f"{given.small}, bf16 in and out", half, given.small)
        bars_of_half(half, threads)
        title = f"{given.small}, states in 8 bits, bf16 in and out"
        report(title, in_8_bits(bench, given.small), given.small)
    print()
    what = f"bytes a parameter in 8 bits ({moved_bytes(4):.2f} in fp32)"
    Bar(what, 16.3, at_least=False).show([moved_bytes(1 + 4 / BLOCK)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
