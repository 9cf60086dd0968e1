"""Updates that begin while backward still runs.

Note [Made early, adopted or made again].  When all gradients of a batch of parameters have come
home, a thread makes their update as `Update` always does: new bytes go to extents of their own,
past every mapping.  Nobody can see them.  When the optimizer steps, our hook compares what the
update has taken for granted with what is so now.  Where all of it holds, the homes take over the
new extents, together with what is updated then, after the last write of that; else the extents
are let go of, and the update is made again.  So an early update can be wrong, late, unfinished
or failed, and never changes a number.

Which updates begin early is foretold from the last iterations: see ``history``.  What they take
of the device is set aside of its budget: an arena of the thread's own.  One batch is made at a
time, by one thread, and no update begins before it has come to rest.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from torch import Tensor
from torch.optim import Optimizer

from zcompile.hooks import weak_hook
from zcompile.ir import Tier
from zcompile.optim.assumption import Assumption, flushes_denormals
from zcompile.optim.claims import claims_of
from zcompile.optim.early_batch import Batch, Worker
from zcompile.optim.history import History
from zcompile.optim.host import Host
from zcompile.optim.native import NativeKernels
from zcompile.optim.program import Memo
from zcompile.optim.rule import Rule, Scaling
from zcompile.optim.rules import rule_of
from zcompile.optim.subjects import GRAD, Subject, fitting, subjects_of
from zcompile.optim.update import Update, raise_versions
from zcompile.passes.ahead import BATCH_WINDOWS, batches
from zcompile.runtime.buffer import tensor_over
from zcompile.runtime.cpu import Landed
from zcompile.runtime.errors import StorageError


class Fate(StrEnum):
    """What became of an update that was begun early."""

    ADOPTED = "adopted"
    MADE_AGAIN = "made again"
    FAILED = "failed"


@dataclass(slots=True)
class _Known:
    """A parameter that an optimizer has updated: by which, with which states, and how it went."""

    optimizer: weakref.ref[Optimizer]
    param: weakref.ref[Tensor]
    group_index: int
    kinds: tuple[str, ...]
    nbytes: int
    history: History = field(default_factory=History)


@dataclass(frozen=True, slots=True)
class Adopted:
    """Updates that were made early and are right: ``subjects`` are those of the step."""

    subjects: tuple[Subject, ...]
    commits: tuple[Callable[[], object], ...]

    def commit(self) -> None:
        """Let the homes take over the new bytes."""
        for commit in self.commits:
            commit()
        raise_versions(self.subjects)


class EarlyUpdates:
    """Begins updates of the managed parameters of one session while backward runs.

    What they may take of the device says the host at any time; ``may_begin`` is whether that is
    ever anything.
    """

    def __init__(self, host: Host, kernels: NativeKernels | None, *, may_begin: bool) -> None:
        self._host = weakref.ref(host)
        self._kernels = None if kernels is None else kernels.alone()
        self._known: dict[str, _Known] = {}
        self._landed: dict[str, tuple[Landed, Assumption | None]] = {}
        self._expected: dict[str, Batch] = {}
        self._memos: dict[tuple[str, ...], Memo] = {}
        self._begun: list[Batch] = []
        self._lock = threading.RLock()
        self._worker = Worker()
        self._fates: Counter[Fate] = Counter()
        if may_begin and kernels is not None:
            host.machine.on_landed = weak_hook(self._on_landed)

    def counts(self) -> dict[str, int]:
        """Return how many updates of parameters began, by what became of them."""
        return {str(fate): number for fate, number in self._fates.items()}

    def close(self) -> None:
        """Begin no more; let go of what was begun, when it has come to rest."""
        host = self._host()
        if host is not None:
            host.machine.on_landed = None
        with self._lock:
            for batch in self._begun:
                batch.drop()
            self._begun.clear()
            self._expected.clear()
            self._landed.clear()
        self._worker.rest()

    def _on_landed(self, landed: Landed) -> None:
        """Take note that a gradient has come home; begin the batch that waited for it."""
        name = landed.value.removesuffix(f":{GRAD}")
        with self._lock:
            self._landed.pop(name, None)  # an order is that of the last comers
            self._landed[name] = landed, self._assumption(name, landed)
            batch = self._expected.get(name)
            if batch is None:
                return
            if name not in batch.missing:
                self._abandon(batch)
                return
            batch.missing.discard(name)
            if not batch.missing:
                self._begin(batch)

    def _assumption(self, name: str, landed: Landed) -> Assumption | None:
        host, known = self._host(), self._known.get(name)
        if host is None or known is None:
            return None
        optimizer, param = known.optimizer(), known.param()
        if optimizer is None or param is None or known.group_index >= len(optimizer.param_groups):
            return None
        group = optimizer.param_groups[known.group_index]
        homes = host.machine.homes
        return Assumption.of(homes, optimizer, group, param, landed.rest, known.kinds)

    def _begin(self, batch: Batch) -> None:
        """Have ``batch`` updated beside what is running, if it still can be."""
        host, optimizer = self._host(), batch.optimizer()
        rule = None if optimizer is None else rule_of(optimizer)
        if host is None or optimizer is None or rule is None or flushes_denormals():
            return
        if not host.early_bytes:
            return
        subjects = self._subjects(batch, optimizer, rule, host)
        target = replace(host.target(), device_budget=host.early_bytes, reserved_bytes=0)
        if len(subjects) < len(batch.names) or len(fitting(subjects, target)) < len(subjects):
            return
        members = tuple(each.member for each in subjects)
        program = batch.memo.program_for(members, host.plan, target)
        if program.resident or program.schedule.vacates:
            return
        scaling, kernels = Scaling(), self._kernels
        batch.update = Update(subjects, program, rule, scaling, host.machine, kernels, ahead=True)
        batch.subjects = {each.claim.name: each for each in subjects}
        self._begun.append(batch)
        self._worker.have(batch)

    def _subjects(
        self, batch: Batch, optimizer: Optimizer, rule: Rule, host: Host
    ) -> tuple[Subject, ...]:
        """Return what ``batch`` updates as it would be, had backward ended."""
        gradients: dict[Tensor, Tensor] = {}
        for name in batch.names:
            param = self._known[name].param()
            landed, assumption = self._landed[name]
            buffer, layout = landed.rest.mapping.buffer(), landed.layout
            if param is not None and buffer is not None and assumption is not None:
                gradients[param] = tensor_over(buffer, 0, layout.dtype, layout.shape, layout.stride)
        claims = claims_of(optimizer, rule, host, gradients)
        found = {claim.name for claim in claims}
        if (
            Scaling.of(optimizer).used
            or found != set(batch.names)
            or any(claim.first for claim in claims)
        ):
            return ()
        subjects = subjects_of(claims, rule, Scaling(), host, self._kernels)
        return subjects if all(map(_may_be_early, subjects)) else ()

    def adopt(self, optimizer: Optimizer, scaling: Scaling, subjects: Sequence[Subject]) -> Adopted:
        """Return those of ``subjects``, about to be updated, of which that has been done.

        When it returns no early update is under way any more, and those of ``optimizer`` that were
        not right are gone.
        """
        host = self._host()
        if host is None or host.machine.on_landed is None:
            return Adopted((), ())
        with self._lock:
            held = self._as_foretold(host, optimizer, scaling, subjects)
            order = list(self._landed)
            for batch in self._begun:
                if batch.optimizer() is optimizer and not held.issuperset(batch.names):
                    batch.drop()
            self._worker.rest()
            adopted = self._adopted(optimizer, {each.claim.name: each for each in subjects})
            self._learn(optimizer, subjects, held)
            self._expect(optimizer, order if host.early_bytes else (), host.early_bytes)
            return adopted

    def _as_foretold(
        self, host: Host, optimizer: Optimizer, scaling: Scaling, subjects: Sequence[Subject]
    ) -> set[str]:
        """Return the names of those whose update could have been made at once, to the same bits."""
        if scaling.used or flushes_denormals():
            return set()
        held: set[str] = set()
        for subject in subjects:
            name = subject.claim.name
            _, assumption = self._landed.get(name, (None, None))
            if (
                assumption is not None
                and _may_be_early(subject)
                and assumption.holds(host.machine.homes, optimizer, subject)
            ):
                held.add(name)
        return held

    def _adopted(self, optimizer: Optimizer, now: Mapping[str, Subject]) -> Adopted:
        """Take the batches of ``optimizer`` that are right; their counts go over to ``now``."""
        subjects: list[Subject] = []
        commits: list[Callable[[], object]] = []
        ours = [each for each in self._begun if each.optimizer() is optimizer]
        self._begun = [each for each in self._begun if each not in ours]
        for batch in ours:
            error, commit = batch.error, batch.commit
            if error is not None and not isinstance(error, StorageError):
                raise error
            alike = all(_alike(now.get(name), each) for name, each in batch.subjects.items())
            if error is not None:
                self._fates[Fate.FAILED] += len(batch.names)
            elif commit is None or batch.dropped or not alike:
                self._in_vain(batch)
            else:
                self._fates[Fate.ADOPTED] += len(batch.names)
                commits.append(commit)
                for name, each in batch.subjects.items():
                    now[name].count = each.count
                    subjects.append(now[name])
        return Adopted(tuple(subjects), tuple(commits))

    def _in_vain(self, batch: Batch) -> None:
        self._fates[Fate.MADE_AGAIN] += len(batch.names)
        for name in batch.names:
            known = self._known[name]
            known.history = known.history.after(held=False, in_vain=True)

    def _abandon(self, batch: Batch) -> None:
        """Let go of ``batch``: one of its gradients came again."""
        for name in batch.names:
            del self._expected[name]
        if batch in self._begun:
            self._begun.remove(batch)
            batch.drop()
            self._in_vain(batch)

    def _learn(self, optimizer: Optimizer, subjects: Sequence[Subject], held: set[str]) -> None:
        for subject in subjects:
            claim = subject.claim
            self._landed.pop(claim.name, None)
            known = self._known.get(claim.name)
            kinds = tuple(claim.storage.kept)
            if (
                known is None
                or known.optimizer() is not optimizer
                or known.param() is not claim.param
                or (known.group_index, known.kinds) != (claim.group_index, kinds)
            ):
                nbytes = sum(part.nbytes(subject.member.numel) for part in subject.member.parts)
                self._known[claim.name] = _Known(
                    weakref.ref(optimizer),
                    weakref.ref(claim.param),
                    claim.group_index,
                    kinds,
                    nbytes,
                )
            else:
                known.history = known.history.after(held=claim.name in held)

    def _expect(self, optimizer: Optimizer, order: Sequence[str], window_bytes: int) -> None:
        """Expect that the gradients of the next iteration come in ``order``, too."""
        self._expected = {
            name: batch
            for name, batch in self._expected.items()
            if batch.optimizer() is not optimizer
        }
        foretold = [name for name in order if self._is_foretold(name, optimizer)]
        least_bytes = BATCH_WINDOWS * window_bytes
        for names in batches(foretold, lambda name: self._known[name].nbytes, least_bytes):
            memo = self._memos.setdefault(names, Memo())
            batch = Batch(weakref.ref(optimizer), names, set(names), memo)
            self._expected.update(dict.fromkeys(names, batch))
        self._memos = {each.names: each.memo for each in self._expected.values()}

    def _is_foretold(self, name: str, optimizer: Optimizer) -> bool:
        known = self._known.get(name)
        return known is not None and known.optimizer() is optimizer and known.history.is_foretold


def _may_be_early(subject: Subject) -> bool:
    """Whether an update changes nothing before its end, and needs no thread of torch's."""
    return subject.arithmetic is not None and all(
        part.home is Tier.NVME and not part.made and (kind != GRAD or not part.written)
        for kind, part in subject.parts.items()
    )


def _alike(now: Subject | None, early: Subject) -> bool:
    """Whether the update of the step is the one that was made."""
    return (
        now is not None
        and now.parts == early.parts
        and now.arithmetic == early.arithmetic
        and now.claim.storage == early.claim.storage
    )
