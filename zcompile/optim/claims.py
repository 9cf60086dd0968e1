"""Which parameters of an optimizer we update; torch's own step updates the rest on the homes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from zcompile.optim.host import Host
from zcompile.optim.rules import Group, Rule, Scaling
from zcompile.runtime.buffer import span


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """One parameter that we update, with everything its update touches.

    ``states`` are those of parameter size.  Before the first update there are none, and
    ``step``, the count of updates, is ``None``.
    """

    name: str
    param: Tensor
    grad: Tensor
    group: Group
    group_index: int
    states: dict[str, Tensor]
    step: Tensor | None

    def count(self, rule: Rule) -> Tensor | None:
        """Return a copy of the count of updates, as torch makes it if there is none yet."""
        if not rule.counts_steps:
            return None
        if self.step is not None:
            return self.step.clone()
        double = torch.get_default_dtype() == torch.float64 and not rule.fused(self.group)
        dtype = torch.float64 if double else torch.float32
        return torch.zeros((), dtype=dtype, device="cpu")


def claims_of(optimizer: Optimizer, rule: Rule, host: Host) -> tuple[Claim, ...]:
    """Return the parameters whose update by ``optimizer`` the takeover carries out.

    They are managed, have a gradient, and lie plainly: one dense block of floating point
    numbers, gradient and states alike.  Whatever overlaps with something that the update
    writes, such as parameters over one storage, is left to torch with all its partners.  So
    are all but the first of those that share a name: the modules that one compiled function
    is called with in turn.
    """
    by_name: dict[str, Claim] = {}
    for claim in _candidates(optimizer, rule, host):
        by_name.setdefault(claim.name, claim)
    found = tuple(by_name.values())
    shared = _entangled(optimizer, rule, found)
    return tuple(claim for claim in found if id(claim.param) not in shared)


def _candidates(optimizer: Optimizer, rule: Rule, host: Host) -> Iterator[Claim]:
    scaling = Scaling.of(optimizer)
    if rule.counts_steps and _any_sparse(optimizer):
        return  # torch refuses before it changes anything; so nothing may have changed by us
    for index, group in enumerate(optimizer.param_groups):
        if scaling.used and not rule.fused(group):
            continue  # torch refuses
        for param in group["params"]:
            name = host.name_of(param)
            if name is None or not _updatable(param, rule, group):
                continue
            state = optimizer.state.get(param, {})
            kinds = rule.state_names(group)
            states = {kind: state[kind] for kind in kinds if state.get(kind) is not None}
            if _complete(rule, kinds, state, states, param):
                step = state.get("step") if rule.counts_steps else None
                yield Claim(name, param, param.grad, group, index, states, step)


def _updatable(param: Tensor, rule: Rule, group: Group) -> bool:
    grad = param.grad
    return (
        grad is not None
        and _plain(param)
        and _alike(grad, param)
        and rule.refusal(group, param.dtype) is None
    )


def _any_sparse(optimizer: Optimizer) -> bool:
    return any(
        param.grad is not None and param.grad.layout is not torch.strided
        for group in optimizer.param_groups
        for param in group["params"]
    )


def _plain(tensor: Tensor) -> bool:
    """Return whether ``tensor`` is one dense block of floating point numbers in memory."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_floating_point()
        and tensor.numel() > 0
        and _dense(tensor)
    )


def _dense(tensor: Tensor) -> bool:
    """Return whether the elements fill their span, each once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _alike(tensor: Tensor, param: Tensor) -> bool:
    """Return whether ``tensor`` lies as ``param`` does, element for element."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device == param.device
        and tensor.layout is torch.strided
        and tensor.dtype is param.dtype
        and tensor.shape == param.shape
        and all(
            size == 1 or ours == theirs
            for size, ours, theirs in zip(param.shape, tensor.stride(), param.stride(), strict=True)
        )
        and not tensor.is_neg()
    )


def _complete(
    rule: Rule,
    kinds: Sequence[str],
    state: Mapping[str, object],
    states: Mapping[str, Tensor],
    param: Tensor,
) -> bool:
    """Return whether the states are what torch would have made: all of them, or none yet."""
    if not all(_alike(tensor, param) for tensor in states.values()):
        return False
    if not rule.counts_steps or not state:
        return True
    return len(states) == len(kinds) and isinstance(state.get("step"), Tensor)


class _Stretch(NamedTuple):
    """Bytes of memory that the step touches on behalf of the parameter with this ``id``."""

    start: int
    end: int
    written: bool
    owner: int


def _entangled(optimizer: Optimizer, rule: Rule, claims: Iterable[Claim]) -> set[int]:
    """Return the ids of parameters that share memory, some of it written, with another tensor."""
    scaling = Scaling.of(optimizer)
    stretches: list[_Stretch] = []
    for group in optimizer.param_groups:
        grad_written = rule.writes_grad(group, scaling)
        for param in group["params"]:
            if param.grad is not None:
                stretches += _stretches(param, param, written=True)
                stretches += _stretches(param.grad, param, written=grad_written)
    for claim in claims:
        for state in claim.states.values():
            stretches += _stretches(state, claim.param, written=True)
    stretches.sort()
    shared: set[int] = set()
    for cluster in _clusters(stretches):
        if len(cluster) > 1 and any(stretch.written for stretch in cluster):
            shared.update(stretch.owner for stretch in cluster)
    return shared


def _stretches(tensor: Tensor, owner: Tensor, *, written: bool) -> list[_Stretch]:
    """Return the memory of ``tensor``: one stretch, or none if it has no address of its own."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.numel() == 0:
        return []
    start = tensor.data_ptr()
    nbytes = span(tensor.shape, tensor.stride()) * tensor.dtype.itemsize
    return [_Stretch(start, start + nbytes, written, id(owner))]


def _clusters(stretches: Iterable[_Stretch]) -> Iterator[list[_Stretch]]:
    """Yield runs of ``stretches``, sorted by start, that hang together by overlapping."""
    cluster: list[_Stretch] = []
    end = 0
    for stretch in stretches:
        if cluster and stretch.start >= end:
            yield cluster
            cluster, end = [], 0
        cluster.append(stretch)
        end = max(end, stretch.end)
    if cluster:
        yield cluster
