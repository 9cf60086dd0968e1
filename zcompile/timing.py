"""How long things take on the machine that a model is planned for, as far as that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zcompile.ir import (
    Compute,
    Cost,
    Hardware,
    Schedule,
    Target,
    Tier,
    channel_in,
    channel_out,
    kernel_name,
    name_in_backward,
    price,
)
from zcompile.machines import load_machine
from zcompile.options import Options
from zcompile.passes.expected import update_seconds
from zcompile.passes.pipeline import TIMED, Pipeline, build_pipeline, needs_times
from zcompile.passes.recompute import pairs


class Timing:
    """The machine of the option ``target``, and what the kernels of each graph cost.

    Raises ``ValueError`` if there is no such machine, or it has no link to a tier that the
    options allow to use.
    """

    def __init__(self, options: Options) -> None:
        self._hardware = None if options.target is None else _machine_of(options, options.target)
        self._costs: dict[str, Mapping[str, Cost]] = {}
        self._measured: dict[str, Mapping[str, float]] = {}
        self._is_pipeline_given = options.pipeline is not None or bool(options.skip)

    def learn(self, costs: Mapping[str, Mapping[str, Cost]]) -> None:
        """Note by graph what each kernel costs."""
        self._costs |= costs

    def correct(self, measured: Mapping[str, Mapping[str, float]]) -> None:
        """Let the seconds of kernels be those that were ``measured``, by graph."""
        self._measured |= measured

    def kernel_seconds(self, graph: str) -> Mapping[str, float]:
        """Return the seconds of the kernels of ``graph``, as far as they are known."""
        if self._hardware is None:
            return {}
        roofline = price(self._costs.get(graph, {}), self._hardware).seconds
        return {**roofline, **self._measured.get(graph, {})}

    def pipelines(self, pipeline: Pipeline) -> tuple[Pipeline, ...]:
        """Return what is tried where times are known: what the user asked for, or all there is."""
        return (pipeline,) if self._is_pipeline_given else TIMED

    def of_graphs(self, graphs: Mapping[str, Schedule], target: Target) -> Target | None:
        """Return ``target`` with the seconds of all kernels; ``None`` if some are unknown."""
        if self._hardware is None or not graphs:
            return None
        seconds = {name: self.kernel_seconds(name) for name in graphs}
        for pair in pairs(graphs.values()):
            theirs = seconds[pair.forward.name].items()
            again = {name_in_backward(pair.forward.name, name): took for name, took in theirs}
            seconds[pair.backward.name] = {**again, **seconds[pair.backward.name]}
        for name, graph in graphs.items():
            kernels = {kernel_name(step) for step in graph.steps if isinstance(step, Compute)}
            if kernels - seconds[name].keys():
                return None
        return replace(target, hardware=self._hardware, kernel_seconds=seconds)

    def of_update(self, update: Schedule, target: Target) -> Target | None:
        """Return ``target`` with the seconds of ``update``, which streams through memory."""
        if self._hardware is None:
            return None
        seconds = {update.name: update_seconds(update, self._hardware)}
        return replace(target, hardware=self._hardware, kernel_seconds=seconds)


def pipeline_of(options: Options) -> Pipeline:
    """Return the passes that the options ask for; ``ValueError`` if they cannot run."""
    try:
        found = build_pipeline(options.pipeline, options.skip)
    except ValueError as error:
        given = [f"pipeline={options.pipeline!r}"] if options.pipeline is not None else []
        given += [f"skip={options.skip!r}"] if options.skip else []
        raise ValueError(f"{', '.join(given)}: {error}") from None
    if options.target is None and needs_times(found):
        raise ValueError(
            f"pipeline={options.pipeline!r}: deadline keeps time by a machine; give target"
        )
    return found


def _machine_of(options: Options, target: str) -> Hardware:
    try:
        machine = load_machine(target)
    except ValueError as error:
        raise ValueError(f"target={target!r}: {error}") from None
    tiers = {
        Tier.HOST: ("host_budget", options.host_budget),
        Tier.NVME: ("nvme_dir", options.nvme_dir),
    }
    for tier, (option, given) in tiers.items():
        for channel in (channel_in(tier), channel_out(tier)):
            if given is not None and channel not in machine.links:
                raise ValueError(
                    f"target={target!r}: {machine.name} has no link {channel}, which {option} "
                    f"needs; leave out {option}, or name a machine that has one"
                )
    return machine
