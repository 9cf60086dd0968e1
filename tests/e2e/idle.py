"""A program that schedules nothing: homes in mappings, plain eager compute.

It gives the right numbers, and a thread that drops pages keeps it small; what it cannot have is
a plan that the bytes follow.  The tests have to fail it: see ``test_nothing_scheduled``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor
from torch.optim import Optimizer

from zcompile.backend import Backend
from zcompile.graphs import Graph
from zcompile.ir import Tier
from zcompile.optim.states import bring_home
from zcompile.options import Options
from zcompile.runtime.binding import Layout
from zcompile.runtime.machine import Machine
from zcompile.session import Session


class IdleSession(Session):
    """Plans as always, and then runs each graph as it was captured."""

    def run(self, graph: Graph, args: list[Any]) -> Sequence[Any]:
        self.announce([graph])
        self._settle(graph, args)
        module = graph.emit(graph.schedule(None, lenient=True)).module
        gradients = graph.captured.roles.gradients
        outputs = cast("Sequence[Any]", module(None, args))
        return [
            self._at_home(each) if at in gradients and isinstance(each, Tensor) else each
            for at, each in enumerate(outputs)
        ]

    def end_iteration(self, optimizer: Optimizer) -> None:
        bring_home(optimizer, self)
        super().end_iteration(optimizer)

    def _at_home(self, gradient: Tensor) -> Tensor:
        layout = Layout.of(gradient)
        home = self.machine.homes.fresh(
            "gradient", Tier.NVME, layout.dtype, layout.shape, layout.stride
        )
        return home.copy_(gradient)

    @property
    def machine(self) -> Machine:
        """The machine, without a takeover: torch updates the homes."""
        if self._machine is None:
            self._machine = self._open()
        return self._machine


class IdleBackend(Backend):
    """Gives every model an idle session."""

    def session(self, owner: object | None, options: Options) -> Session:
        of_owner = self._sessions.setdefault(owner, {})
        if options not in of_owner:
            of_owner[options] = IdleSession(options)
        return of_owner[options]
