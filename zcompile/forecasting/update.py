"""The optimizer's update, planned for parameters that have no memory yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import cast

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from zcompile.forecasting.layers import Layers
from zcompile.forecasting.sampling import samples
from zcompile.ir import (
    Compute,
    Cost,
    Kind,
    Operation,
    Schedule,
    Target,
    Tier,
    Update,
    Value,
    peak_bytes,
)
from zcompile.optim.chunks import Bucket, Member
from zcompile.optim.claims import Claim
from zcompile.optim.host import Host
from zcompile.optim.lion import Lion
from zcompile.optim.native import NativeKernels
from zcompile.optim.program import Program, bucket_name, plan, window_bytes
from zcompile.optim.rule import Rule, Scaling
from zcompile.optim.rules import RULES, rule_of
from zcompile.optim.storage import Storage
from zcompile.optim.subjects import fitting, subjects_of
from zcompile.planner import Planner
from zcompile.precision import Precision

MAX_BUCKETS = 2000
"""An update of more buckets is planned from samples, where layers repeat."""

AT_ONCE = "all"
"""The name of the one kernel that stands for a whole update."""

MakeOptimizer = Callable[[list[Tensor]], Optimizer]

OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "adamw": AdamW,
    "adam": Adam,
    "sgd": SGD,
    "sgd-momentum": lambda parameters: SGD(parameters, momentum=0.9),
    "adagrad": Adagrad,
    "rmsprop": RMSprop,
    "lion": Lion,
}
"""By the names under which a forecast knows them; as torch makes them unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A planned update of some parameters, with what its kernels cost, and how often it counts."""

    times: int
    schedule: Schedule
    costs: Mapping[str, Cost]


@dataclass(frozen=True, slots=True)
class Planned:
    """The update of every iteration but the first: the ``pieces`` together are all of it."""

    members: tuple[Member, ...]
    pieces: tuple[Piece, ...]

    @property
    def at_once(self) -> Piece:
        """All of it as one kernel on whole values, for a bound: how they are cut is a choice."""
        parts = [(part, each) for each in self.members for part in each.parts]
        sizes = {part.name: part.nbytes(each.numel) for part, each in parts}
        values = tuple(Value(part.name, sizes[part.name], part.role) for part, _ in parts)
        written = tuple(part.name for part, _ in parts if part.written)
        step = Update(AT_ONCE, tuple(sizes), written)
        nbytes = sum(sizes.values()) + sum(sizes[name] for name in written)
        cost = (Operation("update", Kind.UPDATE, "", 0, nbytes, 0),)
        return Piece(1, Schedule("update", values, (step,)), {AT_ONCE: cost})


def optimizer_over(optimizer: str | MakeOptimizer, parameters: Sequence[Tensor]) -> Optimizer:
    """Return the optimizer of that name, or the one that the function makes, over ``parameters``.

    Raises ``ValueError`` for a name that there is not, and for an optimizer whose update is not
    planned.
    """
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            near = get_close_matches(optimizer, OPTIMIZERS, n=1)
            remedy = f"did you mean {near[0]!r}? Write" if near else "write"
            raise ValueError(
                f"optimizer={optimizer!r}: {remedy} one of {', '.join(OPTIMIZERS)}, or a function "
                "from a list of parameters to an optimizer"
            )
        optimizer = OPTIMIZERS[optimizer]
    made = optimizer(list(parameters))
    if rule_of(made) is None:
        planned = ", ".join(each.__name__ for each in RULES)
        raise ValueError(
            f"optimizer={type(made).__name__}: its update runs as it is and has no plan; forecasts "
            f"know {planned}"
        )
    return made


def states_ahead(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of the states that ``optimizer`` will make."""
    rule = rule_of(optimizer)
    assert rule is not None
    named = (rule.state_names(group) for group in optimizer.param_groups)
    return tuple(dict.fromkeys(chain.from_iterable(named)))


def plan_update(
    optimizer: Optimizer,
    names: Mapping[int, str],
    planner: Planner,
    precision: Precision,
    lists: Sequence[Layers] = (),
) -> Planned | None:
    """Plan the first update of ``optimizer`` and the next ones as a session does.

    ``names`` gives by id the parameters that graphs give a gradient; with none, nothing is
    updated.  What the optimizer's states need is told to ``planner``, so that its placement
    is the one that training ends up with.  Of an update of very many steps some blocks of
    ``lists`` are planned for all: see `zcompile.forecasting.sampling`.
    """
    rule = rule_of(optimizer)
    assert rule is not None
    ahead = _Ahead(planner, precision)
    kernels = NativeKernels.load()
    found: Planned | None = None
    for first in (True, False):
        claims = [ahead.claim(*each, first=first) for each in _named(optimizer, names, rule)]
        if not claims:
            return None
        subjects = subjects_of(claims, rule, Scaling(), cast("Host", ahead), kernels)
        target = planner.update_target  # after the states of the subjects have been placed
        members = tuple(each.member for each in fitting(subjects, target))
        if first:
            _plan_first(members, planner, target, lists)
        else:
            found = Planned(members, _pieces(members, planner, target, lists))
    return found


def _plan_first(
    members: tuple[Member, ...], planner: Planner, target: Target, lists: Sequence[Layers]
) -> None:
    """Let ``planner`` see what the first update holds: of one of very many steps, a sample."""
    if _num_buckets(members, target) > MAX_BUCKETS:
        _, members = samples(members, lists)[0]
    plan(members, planner.plan_update, target)


def _pieces(
    members: tuple[Member, ...], planner: Planner, target: Target, lists: Sequence[Layers]
) -> tuple[Piece, ...]:
    if _num_buckets(members, target) > MAX_BUCKETS:
        sampled = samples(members, lists)
        programs = [plan(some, planner.plan_update, target) for _, some in sampled]
        if len({peak_bytes(each.schedule, target) for each in programs}) == 1:
            times = [count for count, _ in sampled]
            return tuple(map(_piece, times, programs))
    return (_piece(1, plan(members, planner.plan_update, target)),)


def _num_buckets(members: Sequence[Member], target: Target) -> int:
    """Return about how many buckets ``members`` make."""
    return sum(each.cost_bytes(each.numel) for each in members) // max(1, window_bytes(target))


def _named(
    optimizer: Optimizer, names: Mapping[int, str], rule: Rule
) -> Iterator[tuple[str, Tensor, dict[str, object], int, tuple[str, ...]]]:
    for index, group in enumerate(optimizer.param_groups):
        for param in group["params"]:
            if id(param) in names and rule.refusal(group, param.dtype) is None:
                yield names[id(param)], param, group, index, rule.state_names(group)


class _Ahead:
    """Answers for the homes of tensors that are still to come, as a session does later."""

    def __init__(self, planner: Planner, precision: Precision) -> None:
        self._planner = planner
        self.precision = precision
        self._tiers: dict[int, str] = {}
        self._kept: list[Tensor] = []

    @property
    def machine(self) -> _Ahead:
        return self

    @property
    def homes(self) -> _Ahead:
        return self

    @property
    def facts(self) -> _Ahead:
        return self

    def factor(self, gradient: Tensor) -> None:
        """Nothing has been clipped."""

    def find(self, tensor: Tensor) -> _Place:
        return _Place(
            _Home(self._planner.placement.homes.get(self._tiers[id(tensor)], Tier.DEVICE))
        )

    def expect_states(self, states: Iterable[str]) -> None:
        self._planner.expect_states(states)

    def tier_of(self, value: str) -> Tier:
        parameter, _, state = value.rpartition(":")
        return self._planner.observe_state(parameter, state)

    def claim(
        self,
        name: str,
        param: Tensor,
        group: dict[str, object],
        index: int,
        kinds: tuple[str, ...],
        *,
        first: bool,
    ) -> Claim:
        """Return what an optimizer would hold of ``param``, before its first step or after."""
        grad = self._like(param, f"{name}:grad")
        storage = Storage.of(self.precision, param.dtype, kinds)
        kinds_there = () if first else tuple(storage.kept)
        states = {kind: self._like(param, f"{name}:{kind}") for kind in kinds_there}
        step = None if first else torch.zeros((), device="meta")
        self._tiers[id(param)] = name
        return Claim(name, param, grad, group, index, states, step, storage, {})

    def _like(self, param: Tensor, name: str) -> Tensor:
        made = torch.empty_like(param, device="meta", requires_grad=False)
        self._kept.append(made)
        self._tiers[id(made)] = name
        return made


@dataclass(frozen=True, slots=True)
class _Home:
    tier: Tier


@dataclass(frozen=True, slots=True)
class _Place:
    home: _Home


def _piece(times: int, program: Program) -> Piece:
    """Return ``program`` as steps, with what is updated where it is behind what is streamed."""
    costs: dict[str, Cost] = {}
    for at, bucket in enumerate(program.streamed):
        costs[bucket_name(at)] = _cost(bucket, program.members)
    streamed = program.schedule
    for step in streamed.steps:
        if isinstance(step, Compute):  # zeros, before the first update
            costs[step.kernel] = (Operation("zeros", Kind.STREAM, "", 0, step.transient_bytes),)
    own = {f"resident_{at}": _cost(b, program.members) for at, b in enumerate(program.resident)}
    kernels = tuple(Compute(name, (), ()) for name in own)
    return Piece(times, streamed.with_steps((*streamed.steps, *kernels)), costs | own)


def _cost(bucket: Bucket, members: Sequence[Member]) -> Cost:
    """Return what updating ``bucket`` costs: each part is read, and written if it changes.

    It is launched once: the native library takes a bucket at a time, and an accelerator would.
    torch's kernels on a CPU are called for pieces that stay in its caches, each of which takes far
    longer than a launch.
    """
    nbytes = sum(
        part.nbytes(piece.numel) * (2 if part.written else 1)
        for piece in bucket.pieces
        for part in members[piece.member].parts
    )
    return (Operation("update", Kind.UPDATE, "", 0, nbytes),)
