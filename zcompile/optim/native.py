"""Updates by the native library, wherever they give the bits of torch's own kernels.

Note [Whose bits].  Which roundings torch makes depends on its build, on the level of vector
instructions that it dispatches to, and on the square roots of the MKL inside it.  Nothing of
that is assumed: before a combination of flags is first updated natively, both sides update the
same few thousand numbers, chosen so that every rounding shows.  Only if all bits agree for one
of the arithmetics that the library has is it used; else torch's kernels do the work, as they do
without the library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from zcompile.optim.rule import Group, Operands, Options, Rule, Scaling
from zcompile.optim.storage import Storage
from zcompile.precision import SCALE, Precision
from zcompile.runtime.native import Absent, Native, load
from zcompile.runtime.native_optim import Flag, Formula, Kind, Optimizers, Roots
from zcompile.runtime.optim_batch import Batch, Item, batch
from zcompile.runtime.optim_formulas import Adam
from zcompile.runtime.pool import Pool
from zcompile.runtime.square_roots import mkl_roots

SAMPLE_NUMEL = 4096 + 15
"""Elements that both sides update: vectors, and every length of tail below 16."""

SQUARES = frozenset({"exp_avg_sq", "max_exp_avg_sq", "sum", "square_avg"})
"""States that are not negative."""

LANES = (8, 16, 4)
"""Lengths of vectors that torch's fused kernels may have, the usual one first."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How to round as torch does for one combination of flags.

    ``lanes`` is the length of the vectors of fused kernels: what is left beyond whole ones is
    computed as their scalar loops do.  0: there are no such loops.
    """

    roots: Roots | None
    round_twice: bool
    lanes: int

    def whole_vectors(self, start: int, numel: int, whole_numel: int) -> int:
        """Return how many of ``numel`` elements from ``start`` on lie in whole vectors."""
        if self.lanes == 0:
            return numel
        return min(max(whole_numel // self.lanes * self.lanes - start, 0), numel)


ANY_BITS = Arithmetic(None, round_twice=False, lanes=0)
"""What is used where there are no bits of torch's to match."""

_Key = tuple[Kind, Flag, bool, bool, bool, bool]


class NativeKernels:
    """The native optimizers, and what has been found about torch's kernels in this process."""

    def __init__(self, native: Native, *, is_alone: bool = False) -> None:
        self._native = native
        self._is_alone = is_alone
        self._optimizers = Optimizers(native)
        self._found: dict[_Key, Arithmetic | None] = {}
        self._pool: Pool | None = None

    @classmethod
    def load(cls) -> NativeKernels | None:
        """Return the native optimizers, ``None`` if the library is absent or not wanted."""
        native = load()
        return cls(native) if isinstance(native, Native) else None

    def arithmetic(
        self, rule: Rule, group: Group, scaling: Scaling, dtype: torch.dtype, *, first: bool
    ) -> Arithmetic | None:
        """Return how to update as torch would, ``None`` if only torch can."""
        options = rule.options(group, first=first)
        if options is None or dtype is not torch.float32:
            return None
        formula = options.formula()
        fused, scaled = rule.fused(group), scaling.grad_scale is not None
        branch = abs(formula.weight1) < 0.5
        key = formula.kind, formula.flags, branch, bool(group.get("foreach")), fused, scaled
        if key not in self._found:
            self._found[key] = self._matching(rule, group, scaled=scaled, first=first)
        return self._found[key]

    def run(self, calls: Iterable[tuple[Formula, Batch]]) -> None:
        """Carry out ``calls``, as ``prepared`` returned them, on the pool."""
        for formula, tensors in calls:
            done = self._optimizers.step(formula, tensors, self.threads())
            assert done

    def prepared(
        self,
        arithmetic: Arithmetic,
        rule: Rule,
        group: Group,
        scaling: Scaling,
        operands: Sequence[Operands],
        storage: Storage | None = None,
        factor: Tensor | None = None,
    ) -> list[tuple[Formula, Batch]]:
        """Return the native calls that update ``operands``, usually one; raise their counts.

        They do what ``run_by_torch`` does, to the same bits, or what ``storage`` asks for.
        Gradients, in fp32, are multiplied by ``factor`` before anything else, but not changed.
        """
        options = rule.options(group, first=operands[0].first)
        assert options is not None
        formula = _formula(options, arithmetic, scaling)
        if factor is not None:
            formula = replace(formula, clip_factor=float(factor))
        if operands[0].out is not None:
            formula = formula.with_flags(Flag.FOLLOW)
        items = [_item(options, arithmetic, rule, group, each) for each in operands]
        calls = _calls(formula, items, operands, storage)
        return [(each, batch(together)) for each, together in calls]

    def alone(self) -> NativeKernels:
        """Return the same kernels, with what is known of torch's, on the calling thread alone."""
        kernels = NativeKernels(self._native, is_alone=True)
        kernels._found = self._found
        return kernels

    def threads(self) -> Pool | None:
        """Return a pool of as many threads as torch computes with."""
        if self._is_alone:
            return None
        wanted = torch.get_num_threads()
        if wanted == 1:
            return None
        if self._pool is None or self._pool.num_threads != wanted:
            self._pool = Pool(self._native, wanted)
        return self._pool

    def _matching(
        self, rule: Rule, group: Group, *, scaled: bool, first: bool
    ) -> Arithmetic | None:
        """Return the first arithmetic that gives torch's bits on a sample, if one does."""
        # Other numbers than the user's may be more telling: a rate of zero hides everything.
        group = {**group, "lr": 1.37e-2}
        if group["weight_decay"] != 0:
            group["weight_decay"] = 0.013
        scaling = Scaling(_scalar(3.0), _scalar(0.0)) if scaled else Scaling()
        stock = _sample(rule, group, first=first)
        with torch.no_grad():
            rule.run(group, scaling, [stock])
        for arithmetic in _arithmetics(fused=rule.fused(group)):
            ours = _sample(rule, group, first=first)
            self.run(self.prepared(arithmetic, rule, group, scaling, [ours]))
            if _same_bits(ours, stock):
                return arithmetic
        return None


def check_there(precision: Precision) -> None:
    """Raise ``ValueError`` if ``precision`` needs the native library and there is none."""
    native = load()
    if precision.needs_native and isinstance(native, Absent):
        raise ValueError(
            f"{', '.join(precision.asked)}: needs the native library, but {native.reason}; "
            "have it built, or leave the option out"
        )


def _arithmetics(*, fused: bool) -> Iterator[Arithmetic]:
    if fused:
        for round_twice, lanes in product((False, True), LANES):
            yield Arithmetic(None, round_twice, lanes)
        return
    for round_twice, roots in product((False, True), (mkl_roots(), None)):
        yield Arithmetic(roots, round_twice, 0)


def _formula(options: Options, arithmetic: Arithmetic, scaling: Scaling) -> Formula:
    formula = replace(options.formula(), roots=arithmetic.roots)
    if arithmetic.round_twice:
        formula = formula.with_flags(Flag.ROUND_TWICE)
    if scaling.grad_scale is not None:
        formula = replace(formula, grad_divisor=float(scaling.grad_scale))
    return formula


def _calls(
    formula: Formula,
    items: Sequence[Item],
    operands: Sequence[Operands],
    storage: Storage | None,
) -> Iterator[tuple[Formula, Sequence[Item]]]:
    """Yield what goes into one call: all, but random numbers differ by the count of updates."""
    if storage is None or not storage.stochastic:
        yield formula, items
        return
    formula = replace(formula.with_flags(Flag.STOCHASTIC), seed=storage.precision.seed)
    by_step: dict[int, list[Item]] = {}
    for item, each in zip(items, operands, strict=True):
        assert each.step is not None
        by_step.setdefault(int(each.step), []).append(item)
    for step, together in by_step.items():
        yield replace(formula, step=step), together


def _item(options: Options, arithmetic: Arithmetic, rule: Rule, group: Group, of: Operands) -> Item:
    """Return ``of`` as an item; raise its count of updates."""
    number = 1.0
    if of.step is not None:
        of.step += 1
        number = float(of.step)
    numel = of.param.numel()
    whole_numel = numel if of.whole_numel is None else of.whole_numel
    names = rule.slots(group)
    return Item(
        of.param,
        of.grad,
        [None if name is None else of.states[name] for name in names],
        scales=[None if name is None else of.states.get(name + SCALE) for name in names],
        out=of.out,
        stream=of.stream,
        step_size=options.step_size(number),
        denom_divisor=_divisor(options, number, fused=rule.fused(group)),
        first=of.start,
        whole_vectors=arithmetic.whole_vectors(of.start, numel, whole_numel),
    )


def _divisor(options: Options, number: float, *, fused: bool) -> float:
    return options.denom_divisor(number, fused=fused) if isinstance(options, Adam) else 1.0


def _sample(rule: Rule, group: Group, *, first: bool) -> Operands:
    """Return operands on which every rounding shows; the same ones at each call."""
    random = torch.Generator("cpu").manual_seed(1)

    def normal() -> Tensor:
        return torch.randn(SAMPLE_NUMEL, generator=random, dtype=torch.float32, device="cpu")

    def made() -> Tensor:
        return normal() * torch.exp(4 * normal())

    param, grad = made(), made()
    # Where the parameter is zero it becomes the step itself, to the last bit.
    param[normal() < 0.0] = 0.0
    names = rule.state_names(group)
    states = {name: made().abs_() if name in SQUARES else made() for name in names}
    if "grad_avg" in states:  # a variance is not negative
        states["square_avg"] += states["grad_avg"].square()
    if first:
        states = {name: state.zero_() for name, state in states.items()}
    step = _scalar(0.0 if first else 4.0) if rule.counts_steps else None
    return Operands(param, grad, states, first, step)


def _scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device="cpu")


def _same_bits(ours: Operands, stock: Operands) -> bool:
    # Gradients too: some of torch's loops write into them.
    pairs = [(ours.param, stock.param), (ours.grad, stock.grad)]
    pairs += [(state, stock.states[name]) for name, state in ours.states.items()]
    return all(torch.equal(one.view(torch.int32), other.view(torch.int32)) for one, other in pairs)
