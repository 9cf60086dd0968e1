"""A training loop played three ways: by plain PyTorch, with ample budgets, and with tight ones.

A loop is a function of a `Run`.  It makes its models, has them compiled by the run, trains
them, and shows the run whatever can be seen.  What a run saw is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.e2e.jobs import compiled, same_bits
from tests.e2e.plans import smallest_for_session
from tests.loops.homes import check_at_home, check_mostly_away
from zcompile.backend import Backend
from zcompile.ir import Tier
from zcompile.runtime.ledger import Channel
from zcompile.session import Session

AMPLE_BYTES = 1 << 30

TIGHT = 1.1
"""The tight budget of a model, as a multiple of the smallest that works."""


class Run:
    """One playing of a loop by plain PyTorch; ``seen`` has all that the loop has shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Tensor]] = []

    def compile(self, model: Any, **more: Any) -> Any:
        """Return ``model`` as this run compiles it; ``more`` goes to ``torch.compile``."""
        del more
        return model

    def see(self, what: str, *tensors: Any) -> None:
        """Take copies of ``tensors`` as they are now."""
        self.seen += [(what, each.detach().clone()) for each in tensors]

    def see_all(
        self, model: nn.Module, *optimizers: Optimizer, strangers: Sequence[str] = ()
    ) -> None:
        """Take copies of weights, buffers, gradients and states of ``model``.

        ``strangers`` are parameters that no compiled graph has used so far.
        """
        del strangers
        for name, buffer in model.named_buffers():
            self.see(f"buffer {name}", buffer)
        for name, parameter in model.named_parameters():
            self.see(f"weight {name}", parameter)
            if parameter.grad is not None:
                self.see(f"gradient {name}", parameter.grad)
            for optimizer in optimizers:
                for kind, state in optimizer.state.get(parameter, {}).items():
                    if isinstance(state, Tensor):
                        self.see(f"state {name} {kind}", state)

    def finish(self) -> None:
        """Check what holds when the loop is over."""


R = TypeVar("R", bound=Run)

Loop = Callable[[Run], None]


class CompiledRun(Run):
    """The same compiled, each model under a budget of its own, in the order of compiling.

    Models that are compiled after those that have a budget get the last one's.
    """

    def __init__(self, swap_dir: Path, budgets: Sequence[int]) -> None:
        super().__init__()
        self.backend = Backend()
        self.models: list[Any] = []
        self.least: list[int] = []
        self._swap_dir = swap_dir
        self._budgets = budgets

    def compile(self, model: Any, **more: Any) -> Any:
        budget = self._budgets[min(len(self.models), len(self._budgets) - 1)]
        self.models.append(model)
        self.least.append(0)
        options = {"compute": "eager", "device_budget": budget, "nvme_dir": self._swap_dir}
        return compiled(model, options, self.backend, **more)

    def see_all(
        self, model: nn.Module, *optimizers: Optimizer, strangers: Sequence[str] = ()
    ) -> None:
        self.look(model, optimizers, strangers)
        super().see_all(model, *optimizers)

    def look(
        self, model: nn.Module, optimizers: Sequence[Optimizer], strangers: Sequence[str]
    ) -> None:
        """Note the least budgets of the models as they are now."""
        del model, optimizers, strangers
        for at, each in enumerate(self.models):
            for session in self.backend.sessions(each):
                least = smallest_for_session(session, session.options)
                self.least[at] = max(self.least[at], least)

    def finish(self) -> None:
        self.look(nn.Module(), (), ())
        assert all(self.least), "each model that is compiled is trained"

    def sessions(self) -> list[Session]:
        """Return the sessions of the models that have run; each has one."""
        found = [self.backend.sessions(each) for each in self.models]
        assert all(len(sessions) < 2 for sessions in found)
        return [session for sessions in found for session in sessions]


class TightRun(CompiledRun):
    """The same with so little memory that most of everything moves."""

    def look(
        self, model: nn.Module, optimizers: Sequence[Optimizer], strangers: Sequence[str]
    ) -> None:
        """Check that everything of ``model`` is at home again."""
        check_at_home(self.sessions(), model, optimizers, strangers)

    def finish(self) -> None:
        sessions = self.sessions()
        assert [each.options.device_budget for each in sessions] == list(self._budgets)
        for session, budget in zip(sessions, self._budgets, strict=True):
            total = session.total()
            assert 0 < total.peak_bytes[Tier.DEVICE] <= session.planned_peak_bytes <= budget
            assert total.moved_bytes[Channel.NVME_READ] > 0
            assert total.moved_bytes[Channel.NVME_WRITE] > 0
            check_mostly_away(session)


def check_loop(loop: Loop, swap_dir: Path) -> TightRun:
    """Check that ``loop`` sees the same bits all three ways; return the tight run."""
    plain = play(loop, Run())
    ample = play(loop, CompiledRun(swap_dir, [AMPLE_BYTES]))
    assert unlike(ample, plain) == []
    tight = play(loop, TightRun(swap_dir, [int(TIGHT * each) for each in ample.least]))
    assert unlike(tight, plain) == []
    return tight


def play(loop: Loop, run: R) -> R:
    torch.compiler.reset()
    torch.manual_seed(0)
    loop(run)
    run.finish()
    return run


def unlike(got: Run, want: Run) -> list[str]:
    """Return what differs in any bit between two runs of one loop, and where."""
    assert [what for what, _ in got.seen] == [what for what, _ in want.seen]
    return [
        f"{at}: {what}"
        for at, ((what, mine), (_, theirs)) in enumerate(zip(got.seen, want.seen, strict=True))
        if not same_bits(mine, theirs)
    ]
