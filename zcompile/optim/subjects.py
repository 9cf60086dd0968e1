"""Claims as planning and running see them: parts with homes, and the tensors they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from zcompile.ir import Role, Target, Tier
from zcompile.optim.chunks import Member, Part
from zcompile.optim.claims import Claim
from zcompile.optim.host import Host
from zcompile.optim.program import room_bytes
from zcompile.optim.rules import Rule, Scaling
from zcompile.runtime.homes import Homes

PARAM, GRAD = "", "grad"
"""The kinds of parts that are no states; the kind of a state is its name in the optimizer."""


@dataclass(slots=True)
class Subject:
    """One parameter in an update: its parts as planned and their tensors, both by kind.

    Parts that are made have a tensor from ``make_states`` on.  ``count`` is what the count
    of updates becomes.
    """

    claim: Claim
    member: Member
    parts: dict[str, Part]
    tensors: dict[str, Tensor]
    count: Tensor | None = field(default=None)

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

    def zero_states(self, rule: Rule, homes: Homes) -> None:
        """Make the states that do not exist, as zeros, and the count, for an update that skips."""
        self.make_states(homes)
        for kind, part in self.parts.items():
            if part.made:
                self.tensors[kind].zero_()
        self.count = self.claim.count(rule)

    def hand_over(self, states: dict[Tensor, dict[str, object]]) -> None:
        """Put the count and the states that were made into ``states``, the optimizer's."""
        new: dict[str, object] = {}
        if self.count is not None and self.claim.step is None:
            new["step"] = self.count
        elif self.count is not None and self.claim.step is not None:
            self.claim.step.copy_(self.count)
        new |= {kind: self.tensors[kind] for kind, part in self.parts.items() if part.made}
        if new:
            states[self.claim.param].update(new)


def subjects_of(
    claims: Sequence[Claim], rule: Rule, scaling: Scaling, host: Host
) -> tuple[Subject, ...]:
    """Return ``claims`` in the order in which they are updated, grouped for bucketing."""
    keyed = [
        ((_rank(parts), claim.group_index, any(part.made for part in parts.values())), claim, parts)
        for claim, parts in ((claim, _parts(claim, rule, scaling, host)) for claim in claims)
    ]
    keyed.sort(key=lambda entry: entry[0])
    groups = {key: number for number, key in enumerate(dict.fromkeys(key for key, *_ in keyed))}
    return tuple(
        Subject(
            claim,
            _member(claim, parts, groups[key], rule),
            parts,
            {PARAM: claim.param, GRAD: claim.grad, **claim.states},
        )
        for key, claim, parts in keyed
    )


def fitting(subjects: Sequence[Subject], target: Target) -> tuple[Subject, ...]:
    """Return those of which the smallest pieces fit: what cannot be cut may be too large."""
    threads = torch.get_num_threads()
    room = room_bytes(target)
    return tuple(each for each in subjects if each.member.smallest_bytes(threads) <= room)


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


def _rank(parts: dict[str, Part]) -> int:
    """Return when to update: what is on nvme alone first, then mixtures, then what stays put."""
    if not any(part.away for part in parts.values()):
        return 2
    return 0 if all(part.home is Tier.NVME for part in parts.values() if part.written) else 1


def _member(claim: Claim, parts: dict[str, Part], group: int, rule: Rule) -> Member:
    param = claim.param
    return Member(
        parts=tuple(parts.values()),
        group=group,
        numel=param.numel(),
        itemsize=param.itemsize,
        temporaries=rule.temporaries(claim.group, first=any(part.made for part in parts.values())),
        tails_differ=rule.tails_differ(claim.group, param.dtype),
    )
