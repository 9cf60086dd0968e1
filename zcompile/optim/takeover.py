"""The takeover: torch's hooks on optimizers, and when they come and go.

Note [Who updates what].  A session registers one pre-hook and one post-hook for all
optimizers, the only state of the process that it touches.  When a stock optimizer that holds
managed parameters is about to step, the pre-hook puts a hook of this one optimizer behind
all its other local ones, so the user's hooks run as always: they see the gradients, and run
before the closure does.  That last hook carries out the update of the parameters that we
claim and hands torch's own ``step`` a stand-in for the optimizer that holds the rest of them,
usually none.  Nothing is taken away from the optimizer and nothing has to be put back:
gradients stay where they are, also if something fails.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from zcompile.hooks import weak_hook
from zcompile.optim.claims import check_all_updated, claims_of
from zcompile.optim.early import Adopted, EarlyUpdates
from zcompile.optim.host import Host
from zcompile.optim.loading import keep_types, settle_types
from zcompile.optim.native import NativeKernels
from zcompile.optim.program import Memo
from zcompile.optim.rule import Rule, Scaling
from zcompile.optim.rules import rule_of
from zcompile.optim.states import (
    Brought,
    bring_home,
    holds_managed,
    optimizers_over,
)
from zcompile.optim.subjects import Subject, fitting, subjects_of
from zcompile.optim.update import Update
from zcompile.runtime.errors import StorageError

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

CALLER = 6
"""Frames from a warning up to who called ``step``, through our hooks and torch's wrappers."""


@dataclass(slots=True)
class _Sighting:
    """What one takeover knows of one optimizer that it has met."""

    handles: tuple[RemovableHandle, ...]
    memo: Memo = field(default_factory=Memo)
    last_hook: RemovableHandle | None = None
    num_states: int = 0
    warned: bool = False


class Takeover:
    """Updates the managed parameters of one session, whichever optimizers hold them.

    ``may_begin_early`` says whether the host may ever have bytes for updates that begin while
    backward runs.  The session holds it, and it holds the session weakly.  The hooks go with
    ``close`` or when this object is collected.
    """

    def __init__(self, host: Host, *, may_begin_early: bool = False) -> None:
        self._host = weakref.ref(host)
        self._kernels = NativeKernels.load()
        self.early = EarlyUpdates(host, self._kernels, may_begin=may_begin_early)
        """The updates that begin while backward runs."""
        self._sightings: weakref.WeakKeyDictionary[Optimizer, _Sighting] = (
            weakref.WeakKeyDictionary()
        )
        handles = (
            register_optimizer_step_pre_hook(weak_hook(self._before_step)),
            register_optimizer_step_post_hook(weak_hook(self._after_step)),
        )
        self._closing = weakref.finalize(self, _remove, handles, self._sightings)
        self._closing.atexit = False

    def close(self) -> None:
        """Remove all hooks: from here on torch updates everything, on the homes."""
        self.early.close()
        self._closing()

    def meet(self) -> None:
        """Move the states home that optimizers over managed parameters have already.

        They may have made them at once, as Adagrad does, or have loaded them.
        """
        host = self._host()
        if host is None:
            return
        for optimizer in optimizers_over(host):
            self._sighting(optimizer)
            brought = _bring_home(optimizer, host)
            if rule_of(optimizer) is None:
                self._warn(optimizer, brought)

    def _before_step(self, optimizer: Optimizer, _args: Args, _kwargs: Kwargs) -> None:
        host = self._host()
        if host is None or not holds_managed(optimizer, host):
            return
        sighting = self._sighting(optimizer)
        sighting.num_states = len(optimizer.state)
        brought = _bring_home(optimizer, host)
        if rule_of(optimizer) is None:
            check_all_updated(optimizer, None, host, ())
            self._warn(optimizer, brought)
            _settle(optimizer, host)
            return
        # Anew for each step: so it stands behind hooks that were added since the last one.
        if sighting.last_hook is not None:
            sighting.last_hook.remove()
        sighting.last_hook = optimizer.register_step_pre_hook(weak_hook(self._instead_of_step))

    def _instead_of_step(
        self, optimizer: Optimizer, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs] | None:
        host, rule = self._host(), rule_of(optimizer)
        if host is None or rule is None:
            return None
        args, kwargs = _with_closure_run(args, kwargs)
        # Another session's hook may have put a stand-in there already.
        optimizer_left, *others = args
        memo = self._sighting(optimizer).memo
        early = partial(self.early.adopt, optimizer)
        done = _update(optimizer_left, rule, host, memo, self._kernels, early)
        _settle(optimizer_left, host, done)
        return (_without(optimizer_left, done), *others), kwargs

    def _after_step(self, optimizer: Optimizer, _args: Args, _kwargs: Kwargs) -> None:
        host = self._host()
        if host is None or not holds_managed(optimizer, host):
            return
        _put_in_order(optimizer, self._sighting(optimizer).num_states)
        try:
            brought = _bring_home(optimizer, host)
        except StorageError as error:
            # The step is over: as an error this would invite the user to take it again.
            warnings.warn(
                f"the step is done, but states that {type(optimizer).__qualname__} made stay in "
                f"ordinary memory, outside the budget, at least until the next step: {error}",
                stacklevel=CALLER,
            )
        else:
            self._warn(optimizer, brought)

    def _after_load(self, optimizer: Optimizer) -> None:
        host = self._host()
        if host is not None:
            _bring_home(optimizer, host)

    def _after_save(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        host = self._host()
        if host is not None and not host.precision.plain:
            keep_types(optimizer, state_dict, host)

    def _sighting(self, optimizer: Optimizer) -> _Sighting:
        if optimizer not in self._sightings:
            handles = (
                optimizer.register_load_state_dict_post_hook(weak_hook(self._after_load)),
                optimizer.register_state_dict_post_hook(weak_hook(self._after_save)),
            )
            self._sightings[optimizer] = _Sighting(handles)
        return self._sightings[optimizer]

    def _warn(self, optimizer: Optimizer, brought: Brought) -> None:
        """Tell, once for each optimizer, which of its states were or are outside the budget."""
        sighting = self._sighting(optimizer)
        if brought == Brought() or sighting.warned:
            return
        sighting.warned = True
        kind = type(optimizer)
        told = (
            f"{kind.__module__}.{kind.__qualname__} made {brought.moved_bytes} bytes of states in "
        )
        told += "ordinary memory, outside the budget, until they were moved to their homes"
        if brought.staying_bytes:
            told += f"; {brought.staying_bytes} bytes more stay there: give nvme_dir to have them"
            told += " moved, unless they have no dense memory of their own"
        warnings.warn(
            f"{told}.  What is updated within the budget: dense parameters with a storage and "
            "gradients of their own, by torch.optim.Adam, AdamW, SGD, Adagrad or RMSprop (these "
            "classes, not subclasses of them) without capturable or differentiable, in steps that "
            "begin after the model has been called",
            stacklevel=CALLER,
        )


def _update(
    optimizer: Optimizer,
    rule: Rule,
    host: Host,
    memo: Memo,
    kernels: NativeKernels | None,
    early: Callable[[Scaling, Sequence[Subject]], Adopted],
) -> set[int]:
    """Update what we claim of ``optimizer``; return the ids of those parameters.

    ``early`` returns what has been done already.
    """
    scaling = Scaling.of(optimizer)
    claims = claims_of(optimizer, rule, host)
    for claim in claims:
        # The factor comes before what writes the gradient or reads it in another type.
        if scaling.used or rule.writes_grad(claim.group, scaling) or not claim.storage.plain:
            host.machine.facts.settle(claim.grad)
    subjects = subjects_of(claims, rule, scaling, host, kernels)
    target = host.target()  # only now: states that are new have been placed meanwhile
    subjects = fitting(subjects, target)
    check_all_updated(optimizer, rule, host, [subject.claim for subject in subjects])
    adopted = early(scaling, subjects)
    if scaling.skips:
        for subject in subjects:
            subject.skip(rule, host.machine.homes)
    elif subjects:
        done = {id(each) for each in adopted.subjects}
        left = [each for each in subjects if id(each) not in done]
        if left:
            members = tuple(subject.member for subject in left)
            program = memo.program_for(members, host.plan, target)
            Update(left, program, rule, scaling, host.machine, kernels).run()
        adopted.commit()
    for subject in sorted(subjects, key=lambda subject: subject.number):
        subject.hand_over(optimizer.state)
    return {id(subject.claim.param) for subject in subjects}


def _bring_home(optimizer: Optimizer, host: Host) -> Brought:
    """Bring the states to their types and their homes."""
    rule = rule_of(optimizer)
    if rule is not None:
        settle_types(optimizer, rule, host)
    return bring_home(optimizer, host)


def _settle(optimizer: Optimizer, host: Host, done: Collection[int] = ()) -> None:
    """Scale the gradients that clipping has left to us, but for those of parameters ``done``."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None and id(param) not in done:
                host.machine.facts.settle(param.grad)


def _put_in_order(optimizer: Optimizer, num_old: int) -> None:
    """Put the states of a step's newcomers in the order in which torch would have made them.

    Those of parameters that are left to torch come last otherwise.  State dicts have that order.
    """
    states = optimizer.state
    new = {id(each) for each in list(states)[num_old:]}
    if not new:
        return
    params = [each for group in optimizer.param_groups for each in group["params"]]
    for each in params:
        if id(each) in new:
            states[each] = states.pop(each)


def _without(optimizer: Optimizer, done: set[int]) -> Optimizer:
    """Return a stand-in for ``optimizer`` that holds all parameters but those in ``done``.

    It shares everything else, the states above all.
    """
    if not done:
        return optimizer
    stand_in = object.__new__(type(optimizer))
    stand_in.__dict__.update(optimizer.__dict__)
    groups = (
        {**group, "params": [param for param in group["params"] if id(param) not in done]}
        for group in optimizer.param_groups
    )
    stand_in.param_groups = [group for group in groups if group["params"]]
    return stand_in


def _with_closure_run(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Run the closure if there is one; what takes its place returns the loss that it gave."""
    optimizer, *others = args
    closure = others[0] if others else kwargs.get("closure")
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    return (optimizer,), {"closure": lambda: loss}


def _remove(
    handles: tuple[RemovableHandle, ...],
    sightings: weakref.WeakKeyDictionary[Optimizer, _Sighting],
) -> None:
    for handle in handles:
        handle.remove()
    for sighting in list(sightings.values()):
        for handle in sighting.handles:
            handle.remove()
        if sighting.last_hook is not None:
            sighting.last_hook.remove()
