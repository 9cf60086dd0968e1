"""Updates that begin while backward runs, as a forecast expects them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from zcompile.forecasting.update import Planned
from zcompile.ir import Hardware, Schedule, Update
from zcompile.passes.ahead import ahead
from zcompile.passes.beside import Beside
from zcompile.passes.expected import expected_update
from zcompile.passes.fastest import MAX_BUCKETS
from zcompile.planner import Planner


@dataclass(frozen=True, slots=True)
class Begun:
    """The parameters whose update begins early by ``names``, and how it runs beside backward.

    ``seconds`` are those of its kernels; ``left`` is the update of all others.
    """

    names: Collection[str]
    beside: Sequence[Beside]
    seconds: Mapping[str, Mapping[str, float]]
    left: Planned | None = None


def begun_early(planner: Planner, runs: Sequence[Schedule], hardware: Hardware) -> Begun | None:
    """Return what ``planner`` lets begin while ``runs``, planned, are under way, if anything.

    Of an update of very many parameters that is not known.
    """
    update = expected_update(planner.values, hardware)
    if not planner.early_bytes or len(update.schedule.steps) > MAX_BUCKETS:
        return None
    target = replace(planner.io_target, homes=planner.placement.homes, hardware=hardware)
    begun = ahead(update, runs, target, planner.early_bytes, planner.plan_update)
    if not begun.beside:
        return None
    left = {each.bucket for each in begun.left.schedule.steps if isinstance(each, Update)}
    every = (each.bucket for each in update.schedule.steps if isinstance(each, Update))
    names = frozenset(name for name in every if name not in left)
    return Begun(names, begun.beside, begun.seconds)
