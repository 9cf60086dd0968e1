"""`zcompile.forecast`: does it fit, and what will it take, before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from zcompile.errors import BudgetError, size_text
from zcompile.forecasting.answer import Batch, Forecast, Holding
from zcompile.forecasting.begun import begun_early
from zcompile.forecasting.budgets import budgets_of, options_for
from zcompile.forecasting.capturing import Request, source_of
from zcompile.forecasting.largest import largest_batch
from zcompile.forecasting.layers import repeating
from zcompile.forecasting.timing import in_order, timing_of
from zcompile.forecasting.tracing import Arguments
from zcompile.forecasting.update import MakeOptimizer, optimizer_over, plan_update, states_ahead
from zcompile.ir import Hardware, Role, Schedule, Tier, host_profile, value_name
from zcompile.machines import load_machine
from zcompile.options import Options
from zcompile.passes.placement import home_bytes
from zcompile.planner import Planner


def forecast(
    model: nn.Module,
    example_inputs: object,
    options: Options | Mapping[str, object] | None = None,
    target: str | Path | Hardware = "h100",
    *,
    optimizer: str | MakeOptimizer = "adamw",
    whole: bool = False,
) -> Forecast:
    """Return what training ``model`` under ``options`` on the machine ``target`` comes to.

    Nothing is allocated: ``model`` and ``example_inputs`` are best made under
    ``torch.device("meta")``.  ``example_inputs`` is a tensor, a tuple of positional arguments,
    or a mapping of named ones.  ``options`` are those of ``torch.compile``; without a
    ``device_budget`` the memory of the machine is the budget.  ``target`` is a name out of
    `zcompile.machines.machine_names`, the path of such a file, or a `Hardware`.  ``optimizer``
    is ``"adamw"``, ``"adam"``, ``"sgd"``, ``"sgd-momentum"``, or a function that makes one of
    torch's from a list of parameters.

    Of layers that are alike a few are traced, and only if they foretell one more; ``whole``
    has all of them traced.

    Raises ``ValueError`` for options, machines and optimizers that there are not.
    """
    hardware = target if isinstance(target, Hardware) else load_machine(target)
    chosen = options_for(options, hardware)
    request = Request(model, _arguments(example_inputs), chosen.compute == "eager")
    return _Ahead(request, chosen, hardware, optimizer, whole).forecast()


def _arguments(given: object) -> Arguments:
    if isinstance(given, Mapping):
        return Arguments((), {str(name): each for name, each in cast("Any", given).items()})
    if isinstance(given, tuple | list):
        return Arguments(tuple(cast("Sequence[Any]", given)), {})
    return Arguments((given,), {})


@dataclass(frozen=True)
class _Ahead:
    """One model on one machine: captured, planned and summed up."""

    request: Request
    options: Options
    hardware: Hardware
    optimizer: str | MakeOptimizer
    whole: bool

    @cached_property
    def named(self) -> dict[str, Tensor]:
        """The parameters by the names of their values, each once."""
        return {value_name(n): each for n, each in self.request.model.named_parameters()}

    def forecast(self) -> Forecast:
        made = self._made
        source = source_of(self.request, whole=self.whole)
        graphs = source.graphs()
        schedules = tuple(each.schedule for each in graphs)
        planner = self._planner()
        planner.check_pins(tuple(self.named))
        why_not, smallest_bytes, update, begun = "", None, None, None
        try:
            costs = {each.schedule.name: each.costs for each in graphs}
            planner.announce(schedules, costs, self._itemsizes)
            trained = self._trained(schedules)
            lists = repeating(self.request.model)
            update = plan_update(made, trained, planner, self.options.precision, lists)
            begun = begun_early(planner, in_order(planner), self.hardware)
            if begun is not None:
                left = {at: name for at, name in trained.items() if name not in begun.names}
                begun = replace(
                    begun, left=plan_update(made, left, planner, self.options.precision, lists)
                )
        except BudgetError as error:
            why_not = str(error)
            if error.option == "device_budget":
                smallest_bytes = error.smallest_bytes
        else:
            why_not = self._beyond_capacity(planner)
        planned = bool(planner.plans())
        timing, untimed = timing_of(planner, graphs, update, self.hardware, self._num_tokens, begun)
        return Forecast(
            model=type(self.request.model).__name__,
            machine=self.hardware.name,
            num_parameters=sum(each.numel() for each in self.named.values()),
            captured=source.how,
            budgets=budgets_of(self.options, self.hardware),
            fits=not why_not,
            why_not=why_not,
            smallest_budget_bytes=smallest_bytes or planner.smallest_bytes(schedules),
            largest_batch=self._largest(),
            holdings=_holdings(planner) if planned else (),
            peak_bytes=_peaks(planner) if planned else {},
            timing=timing if planned else None,
            untimed=untimed,
            placement=planner.placement.homes,
            made_again_bytes=sum(each.made_again_bytes for each in planner.plans()),
        )

    @cached_property
    def _made(self) -> Optimizer:
        return optimizer_over(self.optimizer, list(self.named.values()))

    def _planner(self) -> Planner:
        """Return one that knows of the optimizer, as a session does that finds it made."""
        return Planner(self.options, lambda: states_ahead(self._made))

    def _trained(self, schedules: Sequence[Schedule]) -> dict[int, str]:
        """Return the parameters by their ids that a graph gives a gradient."""
        names = {each.name for graph in schedules for each in graph.values}
        found = self.named.items()
        return {id(each): name for name, each in found if f"{name}:grad" in names}

    @property
    def _itemsizes(self) -> dict[str, int]:
        return {name: each.itemsize for name, each in self.named.items()}

    @property
    def _num_tokens(self) -> int | None:
        """How many tokens the arguments hold, if the first tensor is of whole numbers."""
        arguments = self.request.arguments
        leaves = pytree.tree_leaves((arguments.positional, arguments.named))
        first = next((each for each in leaves if isinstance(each, Tensor)), None)
        if first is None or first.is_floating_point() or first.dim() != 2:
            return None
        return prod(first.shape)

    def _beyond_capacity(self, planner: Planner) -> str:
        on_disk = _rest(planner, Tier.NVME)
        capacity = self.hardware.capacities.get(Tier.NVME, 0)
        if on_disk <= capacity:
            return ""
        return (
            f"{size_text(on_disk)} go to nvme, and {self.hardware.name} has {size_text(capacity)}; "
            "give more host_budget or device_budget, or take a machine with a larger disk"
        )

    def _largest(self) -> Batch:
        budget = self.options.device_budget
        planner = self._planner()

        def fits(schedules: tuple[Schedule, ...]) -> bool:
            if budget is not None and self.options.nvme_dir is not None:
                return planner.smallest_bytes(schedules, budget) <= budget
            return planner.has_room_for(schedules)

        return largest_batch(self.request, fits, whole=self.whole)


def _rest(planner: Planner, tier: Tier) -> int:
    homes = planner.placement.homes
    return sum(home_bytes(e, tier) for e in planner.values if homes[e.name] is tier)


def _holdings(planner: Planner) -> tuple[Holding, ...]:
    found: dict[tuple[Role, Tier], list[int]] = {}
    for value in planner.values:
        tier = planner.placement.homes[value.name]
        found.setdefault((value.role, tier), []).append(home_bytes(value, tier))
    return tuple(Holding(*key, len(sizes), sum(sizes)) for key, sizes in found.items())


def _peaks(planner: Planner) -> dict[Tier, int]:
    on_host = (max(host_profile(e.schedule, e.target), default=0) for e in planner.plans())
    return {
        Tier.DEVICE: planner.peak_bytes,
        Tier.HOST: max(on_host, default=0),
        Tier.NVME: _rest(planner, Tier.NVME),
    }
