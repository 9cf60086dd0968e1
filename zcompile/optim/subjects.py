"""Claims as planning and running see them: parts with homes, and the tensors they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zcompile.ir import Role, Target, Tier
from zcompile.optim.chunks import Member, Part
from zcompile.optim.claims import Claim
from zcompile.optim.host import Host
from zcompile.optim.native import Arithmetic, NativeKernels
from zcompile.optim.program import room_bytes
from zcompile.optim.rules import Rule, Scaling
from zcompile.runtime.homes import Homes

PARAM, GRAD = "", "grad"
"""The kinds of parts that are no states; the kind of a state is its name in the optimizer."""


@dataclass(slots=True)
class Subject:
    """One parameter in an update: its parts as planned and their tensors, both by kind.

    ``number`` is its place in the optimizer.  A part that is to be made has a tensor from
    ``make_states`` on.  ``arithmetic`` is how native kernels update it, ``None`` where torch's
    do.  ``count`` is what the count of updates becomes.
    """

    number: int
    claim: Claim
    member: Member
    parts: dict[str, Part]
    tensors: dict[str, Tensor]
    arithmetic: Arithmetic | None = None
    count: Tensor | None = None

    @property
    def first(self) -> bool:
        """Whether the states do not exist yet."""
        return any(part.made for part in self.parts.values())

    def make_states(self, homes: Homes) -> None:
        """Make a home, not yet filled, for each state that does not exist."""
        like = self.claim.param
        for kind, part in self.parts.items():
            if part.made:
                self.tensors[kind] = homes.fresh(
                    part.name, part.home, like.dtype, like.shape, like.stride()
                )

    def skip(self, rule: Rule, homes: Homes) -> None:
        """Do what torch does where a gradient that is not finite prevents the update.

        The states of Adam begin as zeros then.  torch also begins the momentum of SGD, with
        whatever lies in memory; ours begins with the first finite gradient.
        """
        if rule.counts_steps:
            self.make_states(homes)
            for kind, part in self.parts.items():
                if part.made:
                    self.tensors[kind].zero_()
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
    parts_of = [_parts(claim, rule, scaling, host) for claim in claims]
    ways = [
        _arithmetic(claim, parts, rule, scaling, kernels)
        for claim, parts in zip(claims, parts_of, strict=True)
    ]
    keys = [
        _key(claim, parts, way) for claim, parts, way in zip(claims, parts_of, ways, strict=True)
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
        )
        for number, (claim, parts, way, key) in enumerate(
            zip(claims, parts_of, ways, keys, strict=True)
        )
    ]
    return tuple(sorted(subjects, key=lambda subject: subject.member.group))


def fitting(subjects: Sequence[Subject], target: Target) -> tuple[Subject, ...]:
    """Return those of which the smallest pieces fit: what cannot be cut may be too large."""
    room = room_bytes(target)
    return tuple(each for each in subjects if each.member.smallest_bytes <= room)


def _parts(claim: Claim, rule: Rule, scaling: Scaling, host: Host) -> dict[str, Part]:
    grad_written = rule.writes_grad(claim.group, scaling)
    parts = {
        PARAM: Part(claim.name, Role.PARAMETER, _home_of(claim.param, host), written=True),
        GRAD: Part(
            f"{claim.name}:grad", Role.GRADIENT, _home_of(claim.grad, host), written=grad_written
        ),
    }
    for kind in rule.state_names(claim.group):
        name = f"{claim.name}:{kind}"
        state = claim.states.get(kind)
        home = host.tier_of(name) if state is None else _home_of(state, host)
        parts[kind] = Part(name, Role.STATE, home, written=True, made=state is None)
    return parts


def _home_of(tensor: Tensor, host: Host) -> Tier:
    """Return where ``tensor`` rests now; memory that is no home is used where it is."""
    place = host.machine.homes.find(tensor)
    return place.home.tier if place is not None else Tier.DEVICE


def _arithmetic(
    claim: Claim,
    parts: dict[str, Part],
    rule: Rule,
    scaling: Scaling,
    kernels: NativeKernels | None,
) -> Arithmetic | None:
    if kernels is None:
        return None
    first = any(part.made for part in parts.values())
    return kernels.arithmetic(rule, claim.group, scaling, claim.param.dtype, first=first)


def _key(
    claim: Claim, parts: dict[str, Part], way: Arithmetic | None
) -> tuple[int, int, bool, bool]:
    """Return by what to sort: parameters that differ in it are never in one bucket.

    First comes what is on nvme alone, then mixtures, then what stays put: see ``update``.
    Within that, parameters of one group, age of states and kind of kernels share their calls.
    """
    first = any(part.made for part in parts.values())
    if not any(part.away for part in parts.values()):
        return 2, claim.group_index, first, way is None
    nvme_alone = all(part.home is Tier.NVME for part in parts.values() if part.written)
    return 0 if nvme_alone else 1, claim.group_index, first, way is None


def _member(
    claim: Claim, parts: dict[str, Part], group: int, rule: Rule, way: Arithmetic | None
) -> Member:
    param = claim.param
    first = any(part.made for part in parts.values())
    return Member(
        parts=tuple(parts.values()),
        group=group,
        numel=param.numel(),
        itemsize=param.itemsize,
        temporaries=rule.temporaries(claim.group, first=first) if way is None else 0,
        tails_differ=way is None and rule.tails_differ(claim.group, param.dtype),
        threads=torch.get_num_threads(),
    )
