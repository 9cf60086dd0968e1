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

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from zcompile.ir import Tier
from zcompile.optim.chunks import Bucket, Part, Piece
from zcompile.optim.program import Program, bucket_name, piece_name, zeros_name
from zcompile.optim.rules import Operands, Rule, Scaling
from zcompile.optim.subjects import GRAD, PARAM, Subject
from zcompile.runtime.binding import Binding
from zcompile.runtime.executor import execute
from zcompile.runtime.machine import Machine

Kernel = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


class Update:
    """One update of ``subjects`` by ``program``, whose members they are."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        program: Program,
        rule: Rule,
        scaling: Scaling,
        machine: Machine,
    ) -> None:
        self._subjects = subjects
        self._program = program
        self._rule = rule
        self._scaling = scaling
        self._machine = machine
        self._changed: dict[str, None] = {}

    @torch.no_grad()
    def run(self) -> None:
        """Update everything; the note above says what holds after a ``StorageError``."""
        for subject in self._subjects:
            subject.make_states(self._machine.homes)
        if self._program.streamed:
            self._stream()
        for bucket in self._program.resident:
            self._kernel(bucket)({})
        # Copies into homes go past autograd; a backward of before must still notice.
        torch.autograd.graph.increment_version(
            [
                subject.tensors[kind]
                for subject in self._subjects
                for kind, part in subject.parts.items()
                if part.written and part.away
            ]
        )

    def _stream(self) -> None:
        schedule = self._program.schedule
        kernels: dict[str, Kernel] = {}
        for index, bucket in enumerate(self._program.streamed):
            kernels[zeros_name(index)] = self._zeros(bucket)
            kernels[bucket_name(index)] = self._kernel(bucket)
        with self._machine.executing(schedule, self._bindings()) as executor:
            try:
                executor.prepare()
                execute(schedule, executor, kernels, {})
                executor.commit()
            except Exception as error:
                self._tell_changed(error)
                raise

    def _bindings(self) -> dict[str, Binding]:
        return {
            name: Binding.to(self._slice(kind, piece))
            for bucket in self._program.streamed
            for piece in bucket
            for kind, part, name in self._parts(piece)
            if part.away
        }

    def _parts(self, piece: Piece) -> Iterator[tuple[str, Part, str]]:
        """Yield the kind, the part and the name of the value of every part of ``piece``."""
        for kind, part in self._subjects[piece.member].parts.items():
            yield kind, part, piece_name(part, piece, self._program.members)

    def _slice(self, kind: str, piece: Piece) -> Tensor:
        """Return the elements of ``piece`` where they rest, flat, in the order of memory."""
        whole = self._subjects[piece.member].tensors[kind].detach()
        return whole.as_strided((piece.numel,), (1,), whole.storage_offset() + piece.start)

    def _zeros(self, bucket: Bucket) -> Kernel:
        """Return what makes the new states of ``bucket`` that go home."""
        return lambda _: {
            name: torch.zeros(piece.numel, dtype=self._subjects[piece.member].claim.param.dtype)
            for piece in bucket
            for _, part, name in self._parts(piece)
            if part.made and part.away
        }

    def _kernel(self, bucket: Bucket) -> Kernel:
        """Return what updates ``bucket``: from the pieces that travelled to those that go back."""
        group = self._subjects[bucket[0].member].claim.group

        def run(near: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            operands = [self._operands(piece, near) for piece in bucket]
            self._rule.run(group, self._scaling, operands)
            home_bound: dict[str, Tensor] = {}
            for piece, result in zip(bucket, operands, strict=True):
                home_bound.update(self._take_back(piece, result))
            return home_bound

        return run

    def _operands(self, piece: Piece, near: Mapping[str, Tensor]) -> Operands:
        subject = self._subjects[piece.member]
        found: dict[str, Tensor] = {}
        for kind, part, name in self._parts(piece):
            found[kind] = near[name] if part.away else self._slice(kind, piece)
            if part.made and not part.away:
                found[kind].zero_()
        param, grad = found.pop(PARAM), found.pop(GRAD)
        # Every piece raises a count of its own: the real one moves once, and at the end.
        return Operands(param, grad, found, subject.first, subject.claim.count(self._rule))

    def _take_back(self, piece: Piece, result: Operands) -> dict[str, Tensor]:
        """Finish what stays on the device; return what goes home, by the name of the value."""
        subject = self._subjects[piece.member]
        subject.count = result.step
        results = {PARAM: result.param, GRAD: result.grad, **result.states}
        home_bound: dict[str, Tensor] = {}
        for kind, part, name in self._parts(piece):
            if part.written and part.away:
                home_bound[name] = results[kind]
            elif part.made:
                self._slice(kind, piece).copy_(results[kind])
            if part.written and not part.made and part.home is not Tier.NVME:
                self._changed[part.name] = None
        return home_bound

    def _tell_changed(self, error: Exception) -> None:
        if self._changed:
            error.add_note(
                "the update stopped half way; what rests on nvme is as before, but changed, at "
                f"least in part, are {', '.join(self._changed)}"
            )
