"""What a plan moves, and how small a budget may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.e2e.jobs import Job, compiled
from zcompile.backend import Backend
from zcompile.errors import BudgetError
from zcompile.ir import PAGE_BYTES, Role, Tier
from zcompile.options import Options
from zcompile.passes.placement import resident_bytes
from zcompile.planner import Planner
from zcompile.runtime.ledger import Channel, Snapshot
from zcompile.session import Session

MUCH = 1 << 30
"""A host budget that takes all of a small model."""

Given = dict[str, Any]

KINDS = (Role.PARAMETER, Role.GRADIENT, Role.STATE)


def smallest_bytes(job: Job, options: Mapping[str, Any]) -> int:
    """Return the least device budget for ``job``, as the error for a hopeless one gives it."""
    tiny = {**options, "device_budget": PAGE_BYTES}
    refusing = compiled(job.model(), tiny, Backend())
    with pytest.raises(BudgetError) as caught:
        job.loss(refusing, torch.Generator())
    assert caught.value.option == "device_budget"
    return caught.value.smallest_bytes


def smallest_for_session(session: Session, options: Options) -> int:
    """Return the least device budget under ``options`` for all graphs that ``session`` has so far.

    It is what the error for a hopeless budget names: planning needs no second run.
    """
    planner = Planner(replace(options, device_budget=PAGE_BYTES))
    with pytest.raises(BudgetError) as caught:
        planner.announce([each.captured for each in session.planner.plans()])
    assert caught.value.option == "device_budget"
    return caught.value.smallest_bytes


def session_of(backend: Backend, model: nn.Module) -> Session:
    """Return the only session that ``backend`` has for ``model``."""
    (session,) = backend.sessions(model)
    return session


def planned_shares(session: Session) -> dict[Role, float]:
    """Return, of each kind of state, the share of the bytes that has its home off the device."""
    found: dict[Role, float] = {}
    for role in KINDS:
        values = [each for each in session.planner.values if each.role is role]
        on_device = resident_bytes(session.planner.placement, values)
        found[role] = 1 - on_device / sum(each.nbytes for each in values)
    return found


def resting_shares(session: Session, model: nn.Module, optimizer: Optimizer) -> dict[Role, float]:
    """Return the same of the tensors as they lie in memory now: what is really at home."""
    kinds: dict[Role, list[Tensor]] = {
        Role.PARAMETER: list(model.parameters()),
        Role.GRADIENT: [each.grad for each in model.parameters() if each.grad is not None],
        Role.STATE: [
            state
            for parameter in model.parameters()
            for state in optimizer.state[parameter].values()
            if isinstance(state, Tensor) and state.dim() > 0
        ],
    }
    homes = session.machine.homes
    return {
        role: sum(each.nbytes for each in tensors if homes.find(each) is not None)
        / sum(each.nbytes for each in tensors)
        for role, tensors in kinds.items()
    }


def bytes_by_kind(session: Session) -> dict[Role, int]:
    """Return the bytes of all parameters, of all gradients and of all optimizer states."""
    found: dict[Role, int] = dict.fromkeys(KINDS, 0)
    for each in session.planner.values:
        if each.role in found:
            found[each.role] += each.nbytes
    return found


def check_homes_are_away(session: Session, model: nn.Module, optimizer: Optimizer) -> None:
    """Check that half of every kind of state rests off the device, as planned and in fact."""
    for shares in (planned_shares(session), resting_shares(session, model, optimizer)):
        assert all(share >= 0.5 for share in shares.values()), shares


def check_bytes_move(session: Session) -> None:
    """Check that in each iteration half of all states travel.

    A parameter off the device is fetched for the graphs and for the update, a gradient and a
    state once; each is written once.
    """
    kinds = bytes_by_kind(session)
    iterations = session.iterations()
    assert iterations
    for each in iterations:
        assert _out(each) >= sum(kinds.values()) / 2
    for each in iterations[1:]:  # in the first, states are made and not fetched
        assert _in(each) >= (sum(kinds.values()) + kinds[Role.PARAMETER]) / 2


def check_budgets(session: Session) -> None:
    """Check that no tier ever held more than its budget, nor the device more than was planned."""
    peak = session.total().peak_bytes
    assert peak[Tier.DEVICE] <= session.planned_peak_bytes <= (session.options.device_budget or 0)
    assert peak[Tier.HOST] <= (session.options.host_budget or 0)


def _in(counted: Snapshot) -> int:
    return counted.moved_bytes[Channel.NVME_READ] + counted.moved_bytes[Channel.H2D]


def _out(counted: Snapshot) -> int:
    return counted.moved_bytes[Channel.NVME_WRITE] + counted.moved_bytes[Channel.D2H]


def tier_options(tiers: str, swap_dir: Path, half_bytes: int) -> Given:
    """Return the options for ``tiers`` off the device: "nvme", "host", or "both".

    With both, the host takes about ``half_bytes`` and the file the rest.
    """
    nvme: Given = {"nvme_dir": str(swap_dir)}
    match tiers:
        case "nvme":
            return nvme
        case "host":
            return {"host_budget": MUCH}
        case _:
            return {**nvme, "host_budget": half_bytes}


def used_tiers(session: Session) -> set[Tier]:
    """Return the tiers that are home to anything."""
    return set(session.planner.placement.homes.values())
