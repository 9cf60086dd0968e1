"""Taking one dependency out of a plan is noticed: by the verifier, or by the fuzz executor."""

from __future__ import annotations

from collections.abc import Generator, Mapping

import pytest
import torch
from torch import Tensor

from tests.runtime.programs import (
    Mutant,
    Program,
    step_program,
    update_program,
    with_neighbours_swapped,
    without_one_dependency,
)
from zcompile.ir import MANAGED_ROLES, Role, ScheduleError, Tier, verify
from zcompile.runtime.arena import Arena
from zcompile.runtime.binding import Binding, Layout
from zcompile.runtime.executor import execute
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.fuzz import FuzzExecutor
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.machine import Machine
from zcompile.runtime.recording import RecordingExecutor
from zcompile.runtime.transfers import Transfers

PROGRAMS = [make(seed) for seed in range(5) for make in (step_program, update_program)]
SEEDS = range(8)

Results = Mapping[str, Tensor]


@pytest.fixture
def machine(
    homes: Homes, extent_file: ExtentFile, ledger: Ledger
) -> Generator[Machine, None, None]:
    machine = Machine(homes, Transfers(extent_file, ledger), ledger)
    yield machine
    machine.close()


class Careless(FuzzExecutor):
    """Does not wait for the fetch with the ticket ``unwaited``."""

    unwaited: int | None = None

    def wait(self, ticket: int, value: str) -> Tensor:
        if ticket != self.unwaited:
            return super().wait(ticket, value)
        layout = self._bindings[value].layout
        offset = self._offsets[value]
        return self._arena.tensor(offset, layout.dtype, layout.shape, layout.stride)


class Bench:
    """Runs plans of one program on fresh homes."""

    def __init__(self, program: Program, machine: Machine, arena: Arena) -> None:
        self.program = program
        self.machine = machine
        self.arena = arena

    def resident(self) -> Results:
        """Return the results of the captured schedule, with everything on the device."""
        contents = self.program.contents()
        outputs = execute(
            self.program.captured, RecordingExecutor({}), self.program.kernels(), contents
        )
        return {**contents, **outputs}

    def fuzzed(self, mutant: Mutant, seed: int) -> Results:
        """Return the results of ``mutant`` under the fuzz executor."""
        inputs, bindings = self._at_home()
        gradients = [
            value.name
            for value in mutant.executed.values
            if value.role is Role.GRADIENT and value.name not in inputs
        ]
        executor = Careless(
            mutant.executed, bindings, self.arena, self.machine, seed=seed, private=gradients
        )
        executor.unwaited = mutant.unwaited
        try:
            executor.prepare()
            outputs = execute(mutant.executed, executor, self.program.kernels(), inputs)
            executor.commit()
        finally:
            executor.close()
        sources = {
            name: binding.source for name, binding in bindings.items() if binding.source is not None
        }
        return {**inputs, **sources, **outputs}

    def _at_home(self) -> tuple[dict[str, Tensor], dict[str, Binding]]:
        """Return the given values on the device, and bindings for those with other homes."""
        inputs = self.program.contents()
        bindings: dict[str, Binding] = {}
        for value in self.program.planned.values:
            if value.role not in MANAGED_ROLES or value.home is Tier.DEVICE:
                continue
            layout = Layout(torch.float64, (value.nbytes // 8,), (1,))
            source = None
            if value.name in inputs:
                source = self.machine.homes.fresh(
                    value.name, value.home, layout.dtype, layout.shape, layout.stride
                )
                source.copy_(inputs.pop(value.name))
            bindings[value.name] = Binding(layout, source)
        return inputs, bindings


@pytest.fixture(params=PROGRAMS, ids=lambda program: program.captured.name)
def bench(request: pytest.FixtureRequest, machine: Machine) -> Generator[Bench, None, None]:
    program: Program = request.param
    with machine.lease_arena(program.planned.arena_bytes) as arena:
        yield Bench(program, machine, arena)


def same(results: Results, expected: Results) -> bool:
    return all(torch.equal(results[name], tensor) for name, tensor in expected.items())


def test_an_intact_plan_gives_the_resident_results(bench: Bench) -> None:
    expected = bench.resident()
    intact = Mutant("intact", bench.program.planned, bench.program.planned)
    for seed in SEEDS:
        assert same(bench.fuzzed(intact, seed), expected), seed


def is_rejected(mutant: Mutant, program: Program) -> bool:
    """Say whether the verifier refuses the mutant."""
    try:
        verify(mutant.schedule, program.target, program.captured)
    except ScheduleError:
        return True
    return False


def is_noticed(mutant: Mutant, bench: Bench, expected: Results) -> bool:
    """Say whether the mutant gives other results, or none, under some seed."""
    for seed in SEEDS:
        try:
            if not same(bench.fuzzed(mutant, seed), expected):
                return True
        except (AssertionError, KeyError):
            return True
    return False


def test_no_dependency_can_be_taken_out_unnoticed(bench: Bench) -> None:
    mutants = list(without_one_dependency(bench.program.planned))
    expected = bench.resident()
    missed = [
        mutant.what
        for mutant in mutants
        if not is_rejected(mutant, bench.program) and not is_noticed(mutant, bench, expected)
    ]
    assert mutants
    assert len(missed) <= len(mutants) // 100, missed


def test_the_fuzz_executor_alone_notices_what_is_not_waited_for(bench: Bench) -> None:
    expected = bench.resident()
    missed = [
        mutant.what
        for mutant in without_one_dependency(bench.program.planned)
        if "no release" not in mutant.what and not is_noticed(mutant, bench, expected)
    ]
    assert not missed


def test_steps_that_depend_on_each_other_cannot_be_swapped_unnoticed(bench: Bench) -> None:
    expected = bench.resident()
    swapped = list(with_neighbours_swapped(bench.program.planned))
    for seed, (mutant, matters) in enumerate(swapped):
        if is_rejected(mutant, bench.program):
            continue
        if matters:
            assert is_noticed(mutant, bench, expected), f"{mutant.what}: nobody noticed"
        else:
            assert same(bench.fuzzed(mutant, seed), expected), f"{mutant.what}: not equivalent"
