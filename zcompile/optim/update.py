"""Carries out the update of claimed parameters, whole or not at all where it can.

Note [What a failed update leaves].  New bytes of homes on nvme go to other extents, which
the homes take over together, after the last copy has landed.  So if a copy fails:

- every value on nvme and every count of updates is as before;
- a value on the device or the host is as before too, unless it belongs to a mixture: a
  parameter of which something travels and not all that is written rests on nvme.  What is
  on nvme alone is updated first, then the mixtures, and what is all on the device last,
  when no copy can fail any more.  Mixtures whose turn had come are changed where they are
  not on nvme; the error carries a note that names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from zcompile.ir import Tier
from zcompile.optim.chunks import Bucket, Part, Piece, Span
from zcompile.optim.native import NativeKernels
from zcompile.optim.program import Program, bucket_name, piece_name, zeros_name
from zcompile.optim.rule import Operands, Rule, Scaling
from zcompile.optim.storage import run_by_torch
from zcompile.optim.subjects import Subject
from zcompile.runtime.binding import Binding
from zcompile.runtime.executor import UpdatingExecutor, execute
from zcompile.runtime.libc import return_freed_memory
from zcompile.runtime.machine import Machine
from zcompile.runtime.native_optim import Formula
from zcompile.runtime.native_stream import UpdateCall
from zcompile.runtime.optim_batch import Batch
from zcompile.runtime.pool import Pool

Kernel = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


class Update:
    """One update of ``subjects`` by ``program``, whose members they are.

    ``ahead`` says that it is made before it is asked for, by ``make``, and that nobody waits.
    """

    def __init__(
        self,
        subjects: Sequence[Subject],
        program: Program,
        rule: Rule,
        scaling: Scaling,
        machine: Machine,
        kernels: NativeKernels | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        self._subjects = subjects
        self._program = program
        self._rule = rule
        self._scaling = scaling
        self._machine = machine
        self._kernels = kernels
        self._ahead = ahead
        self._changed: dict[str, None] = {}
        self._streamed = {bucket_name(at): each for at, each in enumerate(program.streamed)}

    @torch.no_grad()
    def run(self) -> None:
        """Update everything; the note above says what holds after a ``StorageError``."""
        for subject in self._subjects:
            subject.make_states(self._machine.homes)
        self._stream()
        self._in_place()
        raise_versions(self._subjects)

    @torch.no_grad()
    def make(self) -> Callable[[], object]:
        """Make the new bytes; return what lets them take the place of the old ones.

        All rests in files.  Nothing has changed before that is called.  Raises ``StorageError``.
        """
        assert not self._program.resident, "what is on the device would be changed at once"
        schedule, passing_bytes = self._program.schedule, self._program.passing_bytes
        with (
            self._machine.executing_beside(schedule, self._bindings()) as executor,
            self._machine.ledger.holding(Tier.DEVICE, passing_bytes),
        ):
            self._carry_out(executor)
            return executor.put_off()

    def _stream(self) -> None:
        if not self._program.streamed:
            return
        # The allocator may keep what others have freed: the budget has no room for it.
        return_freed_memory()
        # In this order: until the arena is lent, it holds what the last graph needed of it.
        with (
            self._machine.executing(self._program.schedule, self._bindings()) as executor,
            self._machine.ledger.holding(Tier.DEVICE, self._program.passing_bytes),
        ):
            try:
                self._carry_out(executor)
                executor.commit()
            except BaseException as error:  # an interrupt leaves as much half done as an error
                self._tell_changed(error)
                raise

    def _in_place(self) -> None:
        """Update what is all on the device, beside as much of the arena as there is room for."""
        in_place_bytes = self._program.in_place_bytes
        if in_place_bytes:
            self._machine.keep_at_most(self._program.working_bytes - in_place_bytes)
        with self._machine.ledger.holding(Tier.DEVICE, in_place_bytes):
            for bucket in self._program.resident:
                self._kernel(bucket)({})

    def _carry_out(self, executor: UpdatingExecutor) -> None:
        kernels: dict[str, Kernel] = {}
        for index, bucket in enumerate(self._program.streamed):
            kernels[zeros_name(index)] = self._zeros(bucket)
            kernels[bucket_name(index)] = self._kernel(bucket)
        executor.prepare()
        if not executor.stream(kernels, self):
            execute(self._program.schedule, executor, kernels, {})

    def _bindings(self) -> dict[str, Binding]:
        return {
            name: Binding.to(self._at_rest(kind, part, piece))
            for bucket in self._program.streamed
            for piece in bucket.pieces
            for kind, part, name in self._parts(piece)
            if part.away
        }

    def _parts(self, piece: Piece) -> Iterator[tuple[str, Part, str]]:
        """Yield the kind, the part and the name of the value of every part of ``piece``."""
        for kind, part in self._subjects[piece.member].parts.items():
            yield kind, part, piece_name(part, piece, self._program.members)

    def _at_rest(self, kind: str, part: Part, piece: Piece) -> Tensor:
        """Return the items of ``piece`` where they rest, flat, in the order of memory."""
        whole = self._subjects[piece.member].tensors[kind].detach()
        start = whole.storage_offset() + piece.start // part.per
        return whole.as_strided((part.num_items(piece.numel),), (1,), start)

    def _zeros(self, bucket: Bucket) -> Kernel:
        """Return what makes the new states of ``bucket`` that go home."""
        return lambda _: {
            name: self._subjects[piece.member].claim.beginning(kind, part.num_items(piece.numel))
            for piece in bucket.pieces
            for kind, part, name in self._parts(piece)
            if part.made and part.away
        }

    def _kernel(self, bucket: Bucket) -> Kernel:
        """Return what updates ``bucket``, in place, given the pieces that travelled."""

        def run(fetched: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            pieces = [self._near(piece, fetched) for piece in bucket.pieces]
            for call in bucket.calls:
                self._call(call, bucket, pieces)
            self._note_changed(bucket)
            return fetched

        return run

    @property
    def pool(self) -> Pool | None:
        """Implement ``NativeUpdates.pool``."""
        return None if self._kernels is None else self._kernels.threads()

    @property
    def ahead(self) -> bool:
        """Implement ``NativeUpdates.ahead``."""
        return self._ahead

    def calls(self, bucket: str, tensors: Mapping[str, Tensor]) -> Sequence[UpdateCall] | None:
        """Implement ``NativeUpdates.calls``."""
        of = self._streamed[bucket]
        pieces = [self._near(piece, tensors) for piece in of.pieces]
        prepared: list[UpdateCall] = []
        for call in of.calls:
            subject, operands, _ = self._operands(call, of, pieces)
            calls = self._native(subject, operands)
            if calls is None:
                return None
            prepared += [UpdateCall(formula, tensors) for formula, tensors in calls]
            self._take_counts(call, of, operands)
        return prepared

    def _native(
        self, subject: Subject, operands: Sequence[Operands]
    ) -> list[tuple[Formula, Batch]] | None:
        """Return the native calls of ``operands``, which are like ``subject``, if there are any."""
        if self._kernels is None or subject.arithmetic is None:
            return None
        claim, factor = subject.claim, subject.factor
        return self._kernels.prepared(
            subject.arithmetic,
            self._rule,
            claim.group,
            self._scaling,
            operands,
            claim.storage,
            factor,
        )

    def ran(self, bucket: str) -> None:
        """Implement ``NativeUpdates.ran``."""
        self._note_changed(self._streamed[bucket])

    def _note_changed(self, bucket: Bucket) -> None:
        """Take note of what is changed and will not be as before if a copy fails."""
        self._changed.update(
            (part.name, None)
            for piece in bucket.pieces
            for part in self._subjects[piece.member].parts.values()
            if part.written and not part.made and part.home is not Tier.NVME
        )

    def _near(self, piece: Piece, fetched: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all tensors of ``piece`` on the device, by kind; new states begin."""
        near: dict[str, Tensor] = {}
        for kind, part, name in self._parts(piece):
            near[kind] = fetched[name] if part.away else self._at_rest(kind, part, piece)
            if part.made and not part.away:
                near[kind].fill_(self._subjects[piece.member].claim.beginnings.get(kind, 0.0))
        return near

    def _call(
        self, call: Sequence[Span], bucket: Bucket, pieces: Sequence[dict[str, Tensor]]
    ) -> None:
        """Call torch's kernels, or native ones in their place, once, on parts of ``pieces``."""
        subject, operands, nears = self._operands(call, bucket, pieces)
        calls = self._native(subject, operands)
        if calls is None or self._kernels is None:
            if subject.factor is not None:  # what is scaled here is a copy: it has travelled
                for each in operands:
                    each.grad.mul_(subject.factor)
            run_by_torch(self._rule, subject.claim.group, self._scaling, operands)
        else:
            self._kernels.run(calls)
        self._take_counts(call, bucket, operands)
        for near, result in zip(nears, operands, strict=True):
            for kind, state in result.states.items():
                if state.data_ptr() != near[kind].data_ptr():  # a first momentum, made by torch
                    near[kind].copy_(state)

    def _operands(
        self, call: Sequence[Span], bucket: Bucket, pieces: Sequence[dict[str, Tensor]]
    ) -> tuple[Subject, list[Operands], list[dict[str, Tensor]]]:
        """Return what ``call`` works on, and a subject that speaks for all of its parameters."""
        subjects = [self._subjects[bucket.pieces[span.piece].member] for span in call]
        nears = [
            subject.within(pieces[span.piece], span)
            for span, subject in zip(call, subjects, strict=True)
        ]
        operands = [
            subject.operands(near, bucket.pieces[span.piece].start + span.start, self._rule)
            for span, subject, near in zip(call, subjects, nears, strict=True)
        ]
        return subjects[0], operands, nears

    def _take_counts(
        self, call: Sequence[Span], bucket: Bucket, operands: Sequence[Operands]
    ) -> None:
        for span, result in zip(call, operands, strict=True):
            self._subjects[bucket.pieces[span.piece].member].count = result.step

    def _tell_changed(self, error: BaseException) -> None:
        if self._changed:
            error.add_note(
                "the update stopped half way; what rests on nvme is as before, but changed, at "
                f"least in part, are {', '.join(self._changed)}"
            )


def raise_versions(subjects: Iterable[Subject]) -> None:
    """Raise the versions of what has been updated.

    Copies into homes, and native kernels, go past autograd; a backward of before must still
    notice.
    """
    torch.autograd.graph.increment_version(
        [
            subject.tensors[kind]
            for subject in subjects
            for kind, part in subject.parts.items()
            if part.written and not subject.tensors[kind].is_inference()
        ]
    )
