"""One script run twice: by plain PyTorch, and with every state at home in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.e2e.jobs import compiled, same_bits
from zcompile.backend import Backend
from zcompile.runtime.ledger import Channel
from zcompile.session import Session

Compile = Callable[[Any], Any]

Script = Callable[[Compile], list[Tensor]]
"""Makes models, compiles and trains them; returns what it saw, in copies."""

IN_FILE = {
    "compute": "eager",
    "device_budget": "8MiB",
    "place": dict.fromkeys(("parameters", "gradients", "optimizer", "activations"), "nvme"),
}
"""Everything that can travel does, whether or not it would have to."""


def check_same(script: Script, swap_dir: Path, **more: Any) -> tuple[Session, ...]:
    """Check that ``script`` sees the same bits both ways.

    ``more`` goes to ``torch.compile``, such as ``dynamic``.  Returns the sessions of all
    models that were compiled, each of which has moved its states.
    """
    want = script(lambda model: model)
    torch.compiler.reset()
    backend = Backend()
    models: list[nn.Module] = []

    def compile_model(model: nn.Module) -> Any:
        models.append(model)
        return in_file(model, swap_dir, backend, **more)

    got = script(compile_model)
    unlike = [at for at, (a, b) in enumerate(zip(got, want, strict=True)) if not same_bits(a, b)]
    assert unlike == []
    sessions = tuple(each for model in models for each in backend.sessions(model))
    assert len(sessions) == len(models)
    assert all(each.total().moved_bytes[Channel.NVME_READ] > 0 for each in sessions)
    return sessions


def in_file(model: Any, swap_dir: Path, backend: Backend, **more: Any) -> Any:
    """Return ``model`` compiled with every state at home in a file."""
    options: Mapping[str, object] = {**IN_FILE, "nvme_dir": swap_dir}
    return compiled(model, options, backend, **more)


def copies(model: nn.Module, *others: Tensor) -> list[Tensor]:
    """Return copies of ``others``, of all weights and buffers, and of all gradients."""
    tensors = [*others, *model.state_dict().values()]
    tensors += [each.grad for each in model.parameters() if each.grad is not None]
    return [each.detach().clone() for each in tensors]
