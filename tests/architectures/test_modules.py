"""Every module of PyTorch's own database, with its sample inputs, in float32 on the CPU.

What ``torch.compile`` does with the backend ``aot_eager`` is done with the same bits by ours,
in an ample budget and in a tight one in which every parameter and gradient moves.  Several
samples of a module are called in one graph; a difference is named by the number of its sample.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
from torch import Tensor

from tests.architectures.modules import CALLS, NAMES, Sample, samples_of, trained
from tests.e2e.jobs import Record, compiled, differences
from tests.e2e.plans import smallest_for_session
from zcompile.backend import Backend
from zcompile.ir import Role
from zcompile.options import Options
from zcompile.runtime.ledger import Channel
from zcompile.session import Session

# Some of PyTorch's own samples are such that it warns of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:reduction. .mean. divides:UserWarning"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:linear_cross_entropy. ``options`` ignored:UserWarning"),
]

AMPLE = "256MiB"

AWAY = {"parameters": "nvme", "gradients": "nvme", "optimizer": "nvme"}

SHARD = 8
"""How many samples of one module make one graph."""

FEW = 3
"""How many samples of a module that Dynamo may leave to eager code are tried, each alone."""

NUM_ALONE = 8
"""How many samples of all are tried by default, each alone."""

LEFT_EAGER = {
    "nn.BatchNorm1d": "with momentum=None, reads the number of batches so far off a tensor",
    "nn.BatchNorm2d": "with momentum=None, reads the number of batches so far off a tensor",
    "nn.BatchNorm3d": "with momentum=None, reads the number of batches so far off a tensor",
    "nn.CTCLoss": "has a result whose size depends on data",
    "nn.GaussianNLLLoss": "looks whether a variance is negative",
    "nn.LinearCrossEntropyLoss": "in chunks, is left to eager code by PyTorch itself",
    "nn.Transformer": "looks whether a mask is causal",
    "nn.TransformerEncoder": "looks whether a mask is causal",
}
"""Modules of which Dynamo hands no graph of some samples to a backend, and why."""

OTHER_SHAPES = {
    "nn.MultiLabelMarginLoss": "without reduction, a single sample gives (1,) when traced, not ()",
}
"""Modules of which PyTorch gives results of another shape in a graph, and which."""


def sharded(samples: Sequence[Sample]) -> list[Any]:
    """Return the parameters of a test: a shard of ``samples`` each, called by what is in it."""
    parts = [samples[at : at + SHARD] for at in range(0, len(samples), SHARD)]
    return [
        pytest.param(part, id=f"{part[0].module} {part[0].name} to {part[-1].name}")
        for part in parts
    ]


def spread(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return at most a shard of ``samples``, evenly spread; fewer where each is called alone."""
    most = FEW if samples[0].module in LEFT_EAGER else SHARD
    return samples[:: -(-len(samples) // most)]


def alone() -> list[Sample]:
    chosen = random.Random(1).sample(NAMES, NUM_ALONE)
    return [random.Random(name).choice(samples_of(name)) for name in chosen]


@pytest.fixture(autouse=True)
def recurrent_modules_in_graphs() -> Generator[None]:
    # Dynamo leaves nn.RNN and its like out of graphs unless told to take them in.
    with dynamo_config.patch(allow_rnn=True):
        yield


@pytest.mark.parametrize("sample", alone(), ids=str)
def test_some_samples_alone(sample: Sample, swap_dir: Path) -> None:
    assert problems([sample], swap_dir) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "samples", [shard for name in NAMES for shard in sharded(spread(samples_of(name)))]
)
def test_samples_of_every_module(samples: Sequence[Sample], swap_dir: Path) -> None:
    assert problems(samples, swap_dir) == []


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "samples", [shard for name in NAMES for shard in sharded(samples_of(name))]
)
def test_all_samples_of_every_module(samples: Sequence[Sample], swap_dir: Path) -> None:
    assert problems(samples, swap_dir) == []


def problems(samples: Sequence[Sample], swap_dir: Path) -> list[str]:
    """Return what differs for ``samples``, called in one graph: between any two of four runs.

    A sample that Dynamo leaves to eager code would keep the others out of the graph, so where
    there may be any each is called alone.
    """
    if len(samples) > 1 and samples[0].module in LEFT_EAGER:
        return [each for sample in samples for each in problems([sample], swap_dir)]
    _, plain = trained(samples, lambda model: model)
    torch.compiler.reset()
    _, want = trained(samples, partial(torch.compile, backend="aot_eager"))
    found = [f"aot_eager: {each}" for each in distant(want, plain, samples[0].module)]
    options = {"compute": "eager", "nvme_dir": str(swap_dir)}
    ample, got = trained_by_us(samples, {**options, "device_budget": AMPLE})
    found += [f"ample: {each}" for each in differences(got, want)]
    if ample is None:
        return found if samples[0].module in LEFT_EAGER else [*found, "nothing was compiled"]
    away = {**options, "place": AWAY}
    budget = smallest_for_session(ample, Options.parse(away)) * 11 // 10
    tight, got = trained_by_us(samples, {**away, "device_budget": budget})
    found += [f"tight: {each}" for each in differences(got, want)]
    assert tight is not None
    moved_bytes = tight.total().moved_bytes[Channel.NVME_READ]
    if moved_bytes < CALLS * parameter_bytes(tight):
        found.append(f"tight: {moved_bytes} bytes read are not every parameter in every call")
    return found


def distant(got: Sequence[Record], want: Sequence[Record], module: str) -> list[str]:
    """Return what differs by more than rounding, or in shape, for samples of ``module``.

    What one kernel does in plain PyTorch may be several operations in a graph.
    """
    return [
        f"iteration {at}: {name}"
        for at, (mine, theirs) in enumerate(zip(got, want, strict=True))
        for name in sorted({*mine, *theirs})
        if name not in mine
        or name not in theirs
        or not close(mine[name], theirs[name], any_shape=module in OTHER_SHAPES)
    ]


def close(a: Tensor, b: Tensor, *, any_shape: bool) -> bool:
    """Whether two tensors are the same but for rounding; ``any_shape``: element by element."""
    if any_shape:
        a, b = a.flatten(), b.flatten()
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)


def trained_by_us(
    samples: Sequence[Sample], options: dict[str, Any]
) -> tuple[Session | None, list[Record]]:
    """Return the session of the modules, ``None`` if no graph came, and all tensors."""
    torch.compiler.reset()
    backend = Backend()
    model, records = trained(samples, lambda model: compiled(model, options, backend))
    sessions = backend.sessions(model)
    return (sessions[0] if sessions else None), records


def parameter_bytes(session: Session) -> int:
    return sum(each.nbytes for each in session.planner.values if each.role is Role.PARAMETER)
