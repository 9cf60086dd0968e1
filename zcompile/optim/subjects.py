"""Claims as planning and running see them: parts with homes, and the tensors they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor

from zcompile.ir import Role, Target, Tier
from zcompile.optim.chunks import Member, Part, Span
from zcompile.optim.claims import Claim
from zcompile.optim.host import Host
from zcompile.optim.native import ANY_BITS, Arithmetic, NativeKernels
from zcompile.optim.program import room_bytes
from zcompile.optim.rule import Operands, Rule, Scaling
from zcompile.optim.storage import FOLLOWING
from zcompile.precision import MASTER
from zcompile.runtime.homes import Homes

_Key = tuple[int, int, bool, bool, str, int]

PARAM, GRAD = "", "grad"
"""The kinds of parts that are no states; the kind of a state is its name in the optimizer."""


@dataclass(slots=True)
class Subject:
    """One parameter in an update: its parts as planned and their tensors, both by kind.

    ``number`` is its place in the optimizer.  A part that is to be made has a tensor from
    ``make_states`` on.  ``arithmetic`` is how native kernels update it, ``None`` where torch's
    do.  ``count`` is what the count of updates becomes.  ``factor`` is what clipping has left
    the gradient to be multiplied by.
    """

    number: int
    claim: Claim
    member: Member
    parts: dict[str, Part]
    tensors: dict[str, Tensor]
    arithmetic: Arithmetic | None = None
    count: Tensor | None = None
    factor: Tensor | None = None

    def within(self, tensors: Mapping[str, Tensor], span: Span) -> dict[str, Tensor]:
        """Return the part of ``tensors``, those of one piece by kind, that ``span`` says."""
        return {
            kind: tensors[kind][span.start // part.per : -(-span.stop // part.per)]
            for kind, part in self.parts.items()
        }

    def operands(self, near: Mapping[str, Tensor], start: int, rule: Rule) -> Operands:
        """Return ``near``, elements from ``start`` on, by kind, as kernels take them."""
        states = {kind: near[kind] for kind in self.claim.storage.own_kinds}
        has_master = self.claim.storage.has_master
        return Operands(
            near[MASTER if has_master else PARAM],
            near[GRAD],
            states,
            self.claim.first,
            # Every call raises a count of its own: the real one moves once, at the end.
            self.claim.count(rule),
            start,
            self.member.numel,
            near[PARAM] if has_master else None,
            crc32(self.claim.name.encode()),
        )

    def make_states(self, homes: Homes) -> None:
        """Make a home, not yet filled, for each state that does not exist."""
        storage = self.claim.storage
        for kind, part in self.parts.items():
            if part.made:
                shape, strides = storage.layout_of(kind, self.claim.param)
                self.tensors[kind] = homes.fresh(
                    part.name, part.home, storage.dtype_of(kind), shape, strides
                )

    def skip(self, rule: Rule, homes: Homes) -> None:
        """Do what torch does where a gradient that is not finite prevents the update.

        The states of Adam begin then, and a master as its parameter.  torch also begins
        the momentum of SGD, with whatever lies in memory; ours begins with the first finite
        gradient.
        """
        if rule.counts_steps:
            self.make_states(homes)
            for kind, part in self.parts.items():
                if part.made and kind == MASTER:
                    self.tensors[kind].copy_(self.claim.param.detach())
                elif part.made:
                    self.tensors[kind].fill_(self.claim.beginnings.get(kind, 0.0))
            self.count = self.claim.count(rule)

    def hand_over(self, states: dict[Tensor, dict[str, object]]) -> None:
        """Put the count and the states that were made into ``states``, the optimizer's."""
        new: dict[str, object] = {}
        if self.count is not None:
            if self.claim.step is None:
                new["step"] = self.count
            else:
                self.claim.step.copy_(self.count)
        made = [kind for kind, part in self.parts.items() if part.made and kind in self.tensors]
        new.update((kind, self.tensors[kind]) for kind in made)
        if new:
            states[self.claim.param].update(new)


def subjects_of(
    claims: Sequence[Claim],
    rule: Rule,
    scaling: Scaling,
    host: Host,
    kernels: NativeKernels | None = None,
) -> tuple[Subject, ...]:
    """Return ``claims`` in the order in which they are updated, grouped for bucketing.

    ``kernels`` are the native ones if there are any.
    """
    host.expect_states(
        name for claim in claims if claim.first for name in rule.state_names(claim.group)
    )
    parts_of = [_parts(claim, rule, scaling, host) for claim in claims]
    ways = [_arithmetic(claim, rule, scaling, kernels) for claim in claims]
    factors = [host.machine.facts.factor(claim.grad) for claim in claims]
    keys = [
        _key(claim, parts, way, factor)
        for claim, parts, way, factor in zip(claims, parts_of, ways, factors, strict=True)
    ]
    groups = {key: group for group, key in enumerate(sorted(set(keys)))}
    subjects = [
        Subject(
            number,
            claim,
            _member(claim, parts, groups[key], rule, way),
            parts,
            {PARAM: claim.param, GRAD: claim.grad, **claim.states},
            way,
            factor=factor,
        )
        for number, (claim, parts, way, key, factor) in enumerate(
            zip(claims, parts_of, ways, keys, factors, strict=True)
        )
    ]
    return tuple(sorted(subjects, key=lambda subject: subject.member.group))


def fitting(subjects: Sequence[Subject], target: Target) -> tuple[Subject, ...]:
    """Return those of which the smallest pieces fit: what cannot be cut may be too large."""
    room = room_bytes(target)
    return tuple(each for each in subjects if each.member.smallest_bytes <= room)


def _parts(claim: Claim, rule: Rule, scaling: Scaling, host: Host) -> dict[str, Part]:
    size = claim.param.itemsize
    # What is computed in another type works on a copy of the gradient.
    as_it_is = claim.storage.computed_in is claim.param.dtype
    grad_written = as_it_is and rule.writes_grad(claim.group, scaling)
    parts = {
        PARAM: Part(claim.name, Role.PARAMETER, _home_of(claim.param, host), size, written=True),
        GRAD: Part(
            f"{claim.name}:grad", Role.GRADIENT, _home_of(claim.grad, host), size, grad_written
        ),
    }
    for kind, kept in claim.storage.kept.items():
        name = f"{claim.name}:{kind}"
        state = claim.states.get(kind)
        home = host.tier_of(name) if state is None else _home_of(state, host)
        parts[kind] = Part(
            name, Role.STATE, home, kept.itemsize, written=True, made=state is None, per=kept.per
        )
    return parts


def _home_of(tensor: Tensor, host: Host) -> Tier:
    """Return where ``tensor`` rests now; memory that is no home is used where it is."""
    place = host.machine.homes.find(tensor)
    return place.home.tier if place is not None else Tier.DEVICE


def _arithmetic(
    claim: Claim, rule: Rule, scaling: Scaling, kernels: NativeKernels | None
) -> Arithmetic | None:
    if kernels is None:
        return None
    storage, group = claim.storage, claim.group
    found = kernels.arithmetic(rule, group, scaling, storage.computed_in, first=claim.first)
    return ANY_BITS if found is None and storage.needs_native else found


def _key(
    claim: Claim, parts: dict[str, Part], way: Arithmetic | None, factor: Tensor | None
) -> _Key:
    """Return by what to sort: parameters that differ in it are never in one bucket.

    First comes what is on nvme alone, then mixtures, then what stays put: see ``update``.
    Within that, parameters of one group and type, age of states, kind of kernels and factor
    share their calls.
    """
    # By its bits: one that is not a number equals nothing.
    bits = 0 if factor is None else int(factor.float().view(torch.int32))
    alike = claim.group_index, claim.first, way is None, str(claim.param.dtype), bits
    if not any(part.away for part in parts.values()):
        return 2, *alike
    nvme_alone = all(part.home is Tier.NVME for part in parts.values() if part.written)
    return 0 if nvme_alone else 1, *alike


def _member(
    claim: Claim, parts: dict[str, Part], group: int, rule: Rule, way: Arithmetic | None
) -> Member:
    param, storage = claim.param, claim.storage
    temporaries = rule.temporaries(claim.group, first=claim.first)
    if storage.has_master:
        temporaries = max(1 + temporaries, FOLLOWING)
    return Member(
        parts=tuple(parts.values()),
        group=group,
        numel=param.numel(),
        itemsize=storage.computed_in.itemsize,
        temporaries=temporaries if way is None else 0,
        tails_differ=way is None and rule.tails_differ(claim.group, storage.computed_in),
        threads=torch.get_num_threads(),
    )
