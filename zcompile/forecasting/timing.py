"""How long a planned iteration takes on a machine, and what no plan can beat there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zcompile.forecasting.answer import Timing
from zcompile.forecasting.begun import Begun
from zcompile.forecasting.unroll import Costed
from zcompile.forecasting.update import Planned
from zcompile.ir import (
    Channel,
    Compute,
    Cost,
    Hardware,
    Schedule,
    Update,
    kernel_name,
    name_in_backward,
    price,
)
from zcompile.passes.beside import simulate_beside
from zcompile.passes.bound import bound
from zcompile.passes.recompute import pairs
from zcompile.passes.simulate import simulate
from zcompile.planner import Planner
from zcompile.report.traffic import planned_traffic


def timing_of(
    planner: Planner,
    graphs: Sequence[Costed],
    update: Planned | None,
    hardware: Hardware,
    num_tokens: int | None,
    begun: Begun | None = None,
) -> tuple[Timing | None, tuple[str, ...]]:
    """Return the timing of the iteration that ``planner`` has planned, with ``update`` at its end.

    What of it has ``begun`` before runs beside backward.
    Where operations have no time on ``hardware``, there is none, and their names are returned.
    """
    schedules = in_order(planner)
    if not schedules:
        return None, ()
    costs = _costs(graphs)
    # The bound is that of the iteration as captured, in which nothing is made again.
    captured = {each.schedule.name: each.schedule for each in graphs}
    cycle = [captured[each.name] for each in schedules]
    runs = [_Run(1, schedules, costs, begun)]
    if update is not None:
        left = update if begun is None else begun.left
        pieces = () if left is None else left.pieces
        runs += [_Run(e.times, (e.schedule,), {e.schedule.name: e.costs}) for e in pieces]
        at_once = update.at_once
        cycle.append(at_once.schedule)
        costs = {**costs, at_once.schedule.name: at_once.costs}
    untimed = dict.fromkeys(
        each.operation
        for cost in (costs, *(run.costs for run in runs))
        for kernels in cost.values()
        for each in price(kernels, hardware).unknown
    )
    if untimed:
        return None, tuple(untimed)
    took = [run.simulated(hardware) for run in runs]
    seconds = sum(each.seconds for each in took)
    least = bound(cycle, _seconds(costs, hardware), hardware, planner.io_target)
    timing = Timing(
        seconds=seconds,
        exposed_s=sum(each.exposed_s for each in took),
        kernel_s=sum(each.kernel_s for each in took),
        busy_s=_added(each.busy_s for each in took),
        bound_s=least.seconds,
        binding=str(least.binding),
        gap=least.gap(seconds),
        tokens_per_s=num_tokens / seconds if num_tokens else None,
        moved_bytes=_moved(runs),
    )
    return timing, ()


def _costs(graphs: Sequence[Costed]) -> dict[str, Mapping[str, Cost]]:
    """Return by graph what each kernel costs, in backward those of forward that may run again."""
    found: dict[str, Mapping[str, Cost]] = {each.schedule.name: each.costs for each in graphs}
    for pair in pairs(each.schedule for each in graphs):
        forward, backward = pair.forward.name, pair.backward.name
        again = {name_in_backward(forward, name): cost for name, cost in found[forward].items()}
        found[backward] = {**again, **found[backward]}
    return found


@dataclass(frozen=True, slots=True)
class _Took:
    seconds: float
    exposed_s: float
    kernel_s: float
    busy_s: Mapping[Channel, float]


@dataclass(frozen=True, slots=True)
class _Run:
    """Schedules that run one after another, with nothing in flight before and behind them.

    What they take counts so many ``times``.  What has ``begun`` meanwhile runs beside them.
    """

    times: int
    schedules: tuple[Schedule, ...]
    costs: Mapping[str, Mapping[str, Cost]]
    begun: Begun | None = None

    def simulated(self, hardware: Hardware) -> _Took:
        seconds = _seconds(self.costs, hardware)
        kernel_s = sum(
            seconds[each.name][kernel_name(step)]
            for each in self.schedules
            for step in each.steps
            if isinstance(step, Compute | Update)
        )
        if self.begun is not None:
            return self._beside(self.begun, kernel_s, seconds, hardware)
        found = simulate(self.schedules, seconds, hardware)
        return _Took(
            self.times * found.seconds,
            self.times * found.exposed_s,
            self.times * kernel_s,
            {channel: self.times * busy for channel, busy in found.busy_s.items()},
        )

    def _beside(
        self,
        begun: Begun,
        kernel_s: float,
        seconds: Mapping[str, Mapping[str, float]],
        hardware: Hardware,
    ) -> _Took:
        found = simulate_beside(
            self.schedules, begun.beside, {**seconds, **begun.seconds}, hardware
        )
        kernel_s += sum(sum(each.values()) for each in begun.seconds.values())
        return _Took(found.seconds, max(0.0, found.seconds - kernel_s), kernel_s, found.busy_s)


def _moved(runs: Iterable[_Run]) -> dict[Channel, int]:
    found: dict[Channel, int] = {}
    for run in runs:
        beside = () if run.begun is None else (each.schedule for each in run.begun.beside)
        for schedule in (*run.schedules, *beside):
            for channel, traffic in planned_traffic(schedule).items():
                found[channel] = found.get(channel, 0) + run.times * traffic.moved_bytes
    return found


def _seconds(
    costs: Mapping[str, Mapping[str, Cost]], hardware: Hardware
) -> dict[str, Mapping[str, float]]:
    return {name: price(kernels, hardware).seconds for name, kernels in costs.items()}


def _added(each_busy: Iterable[Mapping[Channel, float]]) -> dict[Channel, float]:
    found: dict[Channel, float] = {}
    for busy in each_busy:
        for channel, seconds in busy.items():
            found[channel] = found.get(channel, 0.0) + seconds
    return found


def in_order(planner: Planner) -> tuple[Schedule, ...]:
    """Return the plans of all graphs as an iteration runs them."""
    plans = {each.captured.name: each.schedule for each in planner.plans()}
    return tuple(plans[name] for name in _in_order(list(plans)))


def _in_order(names: Sequence[str]) -> list[str]:
    """Return the graphs in the order in which they run: backwards come last one first.

    >>> _in_order(["forward.0", "backward.0", "forward.1", "backward.1"])
    ['forward.0', 'forward.1', 'backward.1', 'backward.0']
    """
    back = [name for name in names if name.startswith("backward.")]
    return [name for name in names if name not in back] + back[::-1]
