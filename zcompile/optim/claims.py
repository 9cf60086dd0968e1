"""Which parameters of an optimizer we update; torch's own step updates the rest on the homes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from zcompile.optim.host import Host
from zcompile.optim.rule import Group, Rule, Scaling
from zcompile.optim.storage import Storage
from zcompile.precision import MASTER
from zcompile.runtime.buffer import span


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """One parameter that we update, with everything its update touches.

    ``states`` are those that ``storage`` tells of, so far as they exist.  Before the first
    update there are none, and ``step``, the count of updates, is ``None``.  ``beginnings`` is
    what those begin as that do not begin as zeros.
    """

    name: str
    param: Tensor
    grad: Tensor
    group: Group
    group_index: int
    states: dict[str, Tensor]
    step: Tensor | None
    storage: Storage
    beginnings: Mapping[str, float]

    @property
    def first(self) -> bool:
        """Whether the optimizer's states do not exist yet."""
        return any(kind not in self.states for kind in self.storage.own_kinds)

    def beginning(self, kind: str, num_items: int) -> Tensor:
        """Return ``num_items`` of a state of ``kind`` that does not exist yet."""
        value = self.beginnings.get(kind, 0.0)
        dtype = self.storage.dtype_of(kind)
        return torch.full((num_items,), value, dtype=dtype, device="cpu")

    def count(self, rule: Rule) -> Tensor | None:
        """Return a copy of the count of updates, as torch makes it if there is none yet.

        Stochastic rounding counts where torch does not: random numbers depend on it.
        """
        if not rule.counts_steps and not self.storage.stochastic:
            return None
        if self.step is not None:
            return self.step.clone()
        double = torch.get_default_dtype() == torch.float64 and not rule.fused(self.group)
        dtype = torch.float64 if double else torch.float32
        return torch.zeros((), dtype=dtype, device="cpu")


def claims_of(
    optimizer: Optimizer,
    rule: Rule,
    host: Host,
    gradients: Mapping[Tensor, Tensor] | None = None,
) -> tuple[Claim, ...]:
    """Return the parameters whose update by ``optimizer`` the takeover carries out.

    They are managed, have a gradient, and lie plainly: one dense block of floating point
    numbers, gradient and states alike.  Whatever overlaps with something that the update
    writes, such as parameters over one storage, is left to torch with all its partners.  So
    are all but the first of those that share a name: the modules that one compiled function
    is called with in turn.

    With ``gradients``, by parameter, only those parameters are looked at, as if they had these.
    """
    by_name: dict[str, Claim] = {}
    for claim in _candidates(optimizer, rule, host, gradients):
        by_name.setdefault(claim.name, claim)
    found = tuple(by_name.values())
    shared = _entangled(optimizer, rule, found, gradients)
    return tuple(claim for claim in found if id(claim.param) not in shared)


def check_all_updated(
    optimizer: Optimizer, rule: Rule | None, host: Host, claims: Iterable[Claim]
) -> None:
    """Raise ``ValueError`` if torch's own step would update what is not kept in torch's way.

    ``claims`` are what we update; without a ``rule`` we can update nothing.
    """
    if host.precision.plain:
        return
    ours = {id(claim.param) for claim in claims}
    for group in optimizer.param_groups:
        for param in group["params"]:
            name = host.name_of(param)
            if name is None or param.grad is None or id(param) in ours:
                continue
            names = () if rule is None else rule.state_names(group)
            storage = Storage.of(host.precision, param.dtype, names)
            if not storage.plain:
                raise ValueError(_refusal(optimizer, name, param, group, rule, storage))


def _refusal(
    optimizer: Optimizer,
    name: str,
    param: Tensor,
    group: Group,
    rule: Rule | None,
    storage: Storage,
) -> str:
    asked = ", ".join(storage.precision.asked)
    kind = type(optimizer)
    if rule is None:
        reason = f"{kind.__module__}.{kind.__qualname__} is updated by its own step"
    elif why := rule.refusal(group, storage.computed_in) or storage.refusal:
        reason = why
    elif storage.needs_native and rule.options(group, first=False) is None:
        reason = "a tensor as learning rate or coefficient needs fused=True"
    else:
        reason = (
            "it needs dense memory of its own, a gradient of its layout and the states of its "
            "optimizer"
        )
    return (
        f"{asked}: the update of {name} ({param.dtype}) cannot be made so: {reason}; change that, "
        "or leave the option out; nothing has been changed"
    )


def _candidates(
    optimizer: Optimizer, rule: Rule, host: Host, gradients: Mapping[Tensor, Tensor] | None
) -> Iterator[Claim]:
    scaling = Scaling.of(optimizer)
    refused = any(rule.refuses_sparse(group) for group in optimizer.param_groups)
    if refused and _any_sparse(optimizer):
        return  # torch refuses before it changes anything; so nothing may have changed by us
    for index, group in enumerate(optimizer.param_groups):
        if scaling.used and not rule.fused(group):
            continue  # torch refuses
        for param in group["params"]:
            grad = _gradient(param, gradients)
            name = host.name_of(param) if grad is not None else None
            if grad is None or name is None:
                continue
            storage = Storage.of(host.precision, param.dtype, rule.state_names(group))
            state = optimizer.state.get(param, {})
            states = {kind: state[kind] for kind in storage.kept if state.get(kind) is not None}
            if _updatable(param, grad, rule, group, storage) and _complete(
                rule, storage, state, states, param
            ):
                step = state.get("step") if rule.counts_steps or storage.stochastic else None
                begin = _beginnings(rule, optimizer, storage)
                yield Claim(name, param, grad, group, index, states, step, storage, begin)


def _beginnings(rule: Rule, optimizer: Optimizer, storage: Storage) -> dict[str, float]:
    initial = {kind: rule.initial(optimizer.defaults, kind) for kind in storage.own_kinds}
    return {kind: value for kind, value in initial.items() if value}


def _gradient(param: Tensor, gradients: Mapping[Tensor, Tensor] | None) -> Tensor | None:
    return param.grad if gradients is None else gradients.get(param)


def _updatable(param: Tensor, grad: Tensor, rule: Rule, group: Group, storage: Storage) -> bool:
    return (
        _plain(param)
        and _alike(grad, param, param.dtype)
        and rule.refusal(group, storage.computed_in) is None
        and storage.refusal is None
        and not (storage.needs_native and rule.options(group, first=False) is None)
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


def _alike(
    tensor: Tensor,
    param: Tensor,
    dtype: torch.dtype,
    layout: tuple[Sequence[int], Sequence[int]] | None = None,
) -> bool:
    """Return whether ``tensor``, of ``dtype``, lies as ``param`` does, or as in ``layout``."""
    shape, strides = layout or (param.shape, param.stride())
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.device == param.device
        and tensor.layout is torch.strided
        and tensor.dtype is dtype
        and tensor.shape == torch.Size(shape)
        and all(
            size == 1 or ours == theirs
            for size, ours, theirs in zip(shape, tensor.stride(), strides, strict=True)
        )
        and not tensor.is_neg()
    )


def _complete(
    rule: Rule,
    storage: Storage,
    state: Mapping[str, object],
    states: Mapping[str, Tensor],
    param: Tensor,
) -> bool:
    """Return whether the states are what torch would have made: all of them, or none yet.

    There may be a master without states, and states of torch's without a master.
    """
    for kind, tensor in states.items():
        if not _alike(tensor, param, storage.dtype_of(kind), storage.layout_of(kind, param)):
            return False
    if not rule.counts_steps or not state.keys() - {MASTER}:
        return True
    own = [kind in states for kind in storage.own_kinds]
    begun = all(own) or (not any(own) and unused(state))
    return begun and isinstance(state.get("step"), Tensor)


def unused(state: Mapping[str, object]) -> bool:
    """Return whether torch made ``state`` before the first step, and nothing has used it yet."""
    step = state.get("step")
    return isinstance(step, Tensor) and step.item() == 0


class _Stretch(NamedTuple):
    """Bytes of memory that the step touches on behalf of the parameter with this ``id``."""

    start: int
    end: int
    written: bool
    owner: int


def _entangled(
    optimizer: Optimizer,
    rule: Rule,
    claims: Iterable[Claim],
    gradients: Mapping[Tensor, Tensor] | None,
) -> set[int]:
    """Return the ids of parameters that share memory, some of it written, with another tensor."""
    scaling = Scaling.of(optimizer)
    stretches: list[_Stretch] = []
    for group in optimizer.param_groups:
        grad_written = rule.writes_grad(group, scaling)
        for param in group["params"]:
            grad = _gradient(param, gradients)
            if grad is not None:
                stretches += _stretches(param, param, written=True)
                stretches += _stretches(grad, param, written=grad_written)
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
