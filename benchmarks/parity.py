"""Compare the bits of fine-tuning SmolLM2-135M with and without a plan.

    python benchmarks/parity.py --compute eager --device-budget 512MiB
    python benchmarks/parity.py --compute inductor --device-budget 512MiB

With ``eager`` the run beside the planned one is plain PyTorch.  With ``inductor`` it is this
backend without a budget, so without moves; and a third run, ``torch.compile(model)``, says how
far Inductor's own graphs are from it.  After each iteration every weight, gradient and optimizer
state is compared by a digest.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from zcompile.backend import zinf_backend
from zcompile.demo.job import Job
from zcompile.demo.loop import Batch
from zcompile.demo.packages import find_weights, stay_offline
from zcompile.ir import Role, Tier

Compile = Callable[[nn.Module], Any]


@dataclass(slots=True)
class Trace:
    """What one run gave: losses, and digests by iteration and tensor."""

    losses: list[float] = field(default_factory=list[float])
    digests: list[Mapping[str, bytes]] = field(default_factory=list[Mapping[str, bytes]])


@dataclass(frozen=True, slots=True)
class Bench:
    """The model, the batches, and how often to iterate."""

    pretrained: Any
    weights: Path
    batches: list[Batch]
    iterations: int
    learning_rate: float

    def run(self, name: str, compile_model: Compile) -> tuple[nn.Module, Trace]:
        """Train a newly loaded model; return it and its trace."""
        torch.compiler.reset()
        model: nn.Module = self.pretrained.load_model(self.weights)
        call = compile_model(model)
        optimizer = AdamW(model.parameters(), lr=self.learning_rate, weight_decay=0.1)
        scheduler = CosineAnnealingLR(optimizer, self.iterations)
        trace = Trace()
        for batch in islice(cycle(self.batches), self.iterations):
            optimizer.zero_grad()
            loss = call(**batch, use_cache=False).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            trace.losses.append(loss.item())
            trace.digests.append(digests(model, optimizer))
        print(f"{name}: losses {trace.losses[0]:.4f} to {trace.losses[-1]:.4f}")
        return model, trace


def digests(model: nn.Module, optimizer: Optimizer) -> dict[str, bytes]:
    """Return a digest of every weight, gradient and state; the first word says which it is."""
    found: dict[str, bytes] = {}
    for name, parameter in model.named_parameters():
        found[f"weight {name}"] = digest(parameter)
        if parameter.grad is not None:
            found[f"gradient {name}"] = digest(parameter.grad)
        for kind, state in optimizer.state[parameter].items():
            found[f"state {name} {kind}"] = digest(state)
    return found


def digest(tensor: Tensor) -> bytes:
    """Return a digest of the bits of ``tensor``."""
    plain = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(plain.numpy().data).digest()


def compare(got: Trace, want: Trace) -> str:
    """Return how many tensors of each kind have equal bits, all iterations together."""
    same: Counter[str] = Counter()
    compared: Counter[str] = Counter()
    for mine, theirs in zip(got.digests, want.digests, strict=True):
        for name in {*mine, *theirs}:
            kind = name.partition(" ")[0]
            compared[kind] += 1
            same[kind] += mine.get(name) == theirs.get(name)
    same["loss"] = sum(a == b for a, b in zip(got.losses, want.losses, strict=True))
    compared["loss"] = len(want.losses)
    return ", ".join(f"{kind} {same[kind]}/{compared[kind]}" for kind in sorted(compared))


def farthest(got: Trace, want: Trace) -> float:
    """Return the largest relative difference of a loss."""
    return max(abs(a - b) / abs(b) for a, b in zip(got.losses, want.losses, strict=True))


def shares_away(model: nn.Module) -> str:
    """Return how much of each kind of state rests off the device."""
    (session,) = zinf_backend.sessions(model)
    away: Counter[Role] = Counter()
    total: Counter[Role] = Counter()
    for each in session.planner.values:
        total[each.role] += each.nbytes
        is_away = session.planner.placement.homes[each.name] is not Tier.DEVICE
        away[each.role] += each.nbytes if is_away else 0
    return ", ".join(f"{100 * away[role] / total[role]:.0f} % of {role}s" for role in total)


def parse() -> argparse.Namespace:
    """Return the arguments of the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compute", choices=("eager", "inductor"), default="eager")
    parser.add_argument("--device-budget", default="512MiB")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--swap-dir", type=Path, help="default: a temporary folder in this one")
    return parser.parse_args()


def main() -> None:
    """Run twice or three times and print what is equal."""
    asked = parse()
    stay_offline()
    if asked.threads:
        torch.set_num_threads(asked.threads)
    pretrained = import_module("zcompile.demo.pretrained")
    job = Job(steps=asked.iterations, sequence=asked.sequence)
    weights = find_weights()
    batches = pretrained.read_batches(weights, job)
    bench = Bench(pretrained, weights, batches, asked.iterations, job.learning_rate)
    with swap_folder(asked.swap_dir) as folder:
        options = {"device_budget": asked.device_budget, "nvme_dir": folder}
        model, planned = bench.run("planned", with_options(asked.compute, **options))
    print(f"away from the device: {shares_away(model)}")
    del model
    gc.collect()
    if asked.compute == "eager":
        _, want = bench.run("plain PyTorch", lambda model: model)
        print(f"equal bits, planned and plain PyTorch: {compare(planned, want)}")
        return
    _, want = bench.run("without a plan", with_options("inductor"))
    print(f"equal bits, with and without a plan: {compare(planned, want)}")
    _, stock = bench.run("torch.compile", torch.compile)
    print(f"largest relative difference of a loss from torch.compile: {farthest(want, stock):.1e}")


def with_options(compute: str, **options: Any) -> Compile:
    """Return what compiles a model under ``options``."""
    return lambda model: torch.compile(
        model, backend="zinf", options={"compute": compute, **options}
    )


def swap_folder(given: Path | None) -> AbstractContextManager[str]:
    """Return ``given``, or a folder here that goes afterwards."""
    if given is not None:
        return nullcontext(str(given))
    return tempfile.TemporaryDirectory(prefix="zinf-", dir=Path.cwd())


if __name__ == "__main__":
    main()
