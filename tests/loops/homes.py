"""Where the tensors of a model rest, against where its plan wants them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from zcompile.ir import Tier
from zcompile.session import Session


def check_at_home(
    sessions: Sequence[Session],
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    strangers: Collection[str] = (),
) -> None:
    """Check that every parameter, gradient and state of ``model`` rests where it should.

    That is with one of ``sessions``.  ``strangers`` are the parameters that no graph has used.
    """
    unknown = {
        name
        for name, each in model.named_parameters()
        if all(session.name_of(each) is None for session in sessions)
    }
    assert unknown == set(strangers)
    astray = [
        f"{name} is on {_tier_of(session, tensor)}, not on {wanted}"
        for session in sessions
        for name, tensor, wanted in _managed(session, model, optimizers)
        if _tier_of(session, tensor) is not wanted
    ]
    assert astray == []


def check_mostly_away(session: Session) -> None:
    """Check that most bytes of parameters, gradients and states have their home in the file."""
    values = session.planner.values
    homes = session.planner.placement.homes
    away_bytes = sum(each.nbytes for each in values if homes[each.name] is Tier.NVME)
    assert away_bytes > sum(each.nbytes for each in values) / 2


def _managed(
    session: Session, model: nn.Module, optimizers: Sequence[Optimizer]
) -> Iterator[tuple[str, Tensor, Tier]]:
    """Yield the name, the tensor and the tier of everything that has a home."""
    homes = session.planner.placement.homes
    for parameter in model.parameters():
        name = session.name_of(parameter)
        if name is None or name not in homes:
            continue
        yield name, parameter, homes[name]
        gradient = f"{name}:grad"
        if parameter.grad is not None and gradient in homes:
            yield gradient, parameter.grad, homes[gradient]
        for optimizer in optimizers:
            for kind, state in optimizer.state.get(parameter, {}).items():
                if isinstance(state, Tensor) and state.dim() > 0 and state.shape == parameter.shape:
                    yield f"{name}:{kind}", state, session.tier_of(f"{name}:{kind}")


def _tier_of(session: Session, tensor: Tensor) -> Tier:
    if tensor.numel() == 0:
        return Tier.NVME
    place = session.machine.homes.find(tensor)
    return Tier.DEVICE if place is None else place.home.tier
