"""The bound of an iteration: by hand for one model, and never beaten by any plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.plan.iterations import MACHINE, iteration, seconds_of, tiers
from tests.plan.renaming import other_names, renamed
from tests.plan.schedules import many, models
from tests.plan.small_models import Model, small
from zcompile.ir import (
    Channel,
    Target,
)
from zcompile.passes.bound import Load, Moving, Term, bound, least_moves
from zcompile.passes.pipeline import PIPELINE, run_within_budget
from zcompile.passes.place import place
from zcompile.passes.placement import DoesNotFit, managed_values, target_for
from zcompile.passes.simulate import simulate
from zcompile.passes.smallest import smallest_for_model

PAGE = 4096
LAYER = 2 * PAGE


def test_with_room_for_all_only_kernels_count() -> None:
    cycle = iteration(small())
    found = bound(cycle, seconds_of(cycle, 0.5), MACHINE, Target(has_nvme=True))
    assert found.moving == Moving(0, 0, 0, 0)
    loads = (Load("compute", 0, 2.5), Load("update", 0, 1.0))
    assert found.binding == Term("kernels", 3.5, loads)
    assert found.gap(7.0) == 1.0


def test_what_has_no_room_moves() -> None:
    cycle = iteration(small())
    # Two layers: parameters, gradients and moments of two pages each.  The fullest kernels need
    # 100 bytes and two pages, so of 5 pages and 100 bytes 3 pages can stay at all times.
    target = Target(device_budget=5 * PAGE + 100, has_nvme=True)
    least = least_moves(cycle, target)
    total, gradients, room = 4 * LAYER, 2 * LAYER, 5 * PAGE + 100
    assert least == Moving(
        total + gradients - room,
        total + gradients - room,
        total + gradients - room,
        total + gradients - room,
    )
    found = bound(cycle, seconds_of(cycle, 0.001), MACHINE, target)
    nbytes = least.in_bytes
    assert found.binding.resource == "disk"
    assert found.seconds == pytest.approx(nbytes / 2e6 + nbytes / 1e6)
    read, written = found.binding.loads
    assert (read.what, read.nbytes, read.seconds) == ("read", nbytes, nbytes / 2e6)
    assert (written.what, written.nbytes, written.seconds) == ("written", nbytes, nbytes / 1e6)
    assert str(found.binding) == "disk: 0.043 s (read 0.000 GB, written 0.000 GB)"


def test_the_host_takes_its_part() -> None:
    cycle = iteration(small())
    target = Target(device_budget=5 * PAGE + 100, has_nvme=True, host_budget=PAGE)
    least = least_moves(cycle, target)
    assert least.nvme_in_bytes == least.in_bytes - PAGE
    alone = replace(target, has_nvme=False, host_budget=1 << 30)
    assert least_moves(cycle, alone) == replace(least, nvme_in_bytes=0, nvme_out_bytes=0)


def test_evaluation_writes_nothing() -> None:
    (forward, _), _ = small()
    least = least_moves([forward], Target(device_budget=LAYER + 200, has_nvme=True))
    assert least.out_bytes == 0
    assert least.in_bytes == 2 * LAYER - LAYER - 200 + 100 + 100


def test_what_is_missing_is_named() -> None:
    cycle = iteration(small())
    with pytest.raises(ValueError, match="forward: no time is known for the kernel 'f0'"):
        bound(cycle, {}, MACHINE, Target())
    no_disk = replace(MACHINE, links={Channel.H2D: MACHINE.links[Channel.H2D]})
    with pytest.raises(ValueError, match="one disk: has no link nvme_read"):
        bound(cycle, seconds_of(cycle, 1.0), no_disk, Target(has_nvme=True))


@many
@given(models(), tiers, st.integers(0, 400_000), st.sampled_from([0.0, 1e-3, 0.05]))
def test_no_plan_is_faster(
    model: Model, tiers: tuple[int | None, bool], spare: int, seconds: float
) -> None:
    host, has_nvme = tiers
    target = Target(host_budget=host, has_nvme=has_nvme)
    cycle = iteration(model)
    least = smallest_for_model(cycle, (), (), target).bytes
    target = replace(target, device_budget=least + spare)
    try:
        placement = place(cycle, (), (), target)
    except DoesNotFit:
        assume(False)
        raise
    values = managed_values(cycle)
    planned = [
        run_within_budget(PIPELINE, graph, target_for(graph, placement, values, target)).schedule
        for graph in cycle
    ]
    kernels = seconds_of(cycle, seconds)
    taken = simulate(planned, kernels, MACHINE).seconds
    found = bound(cycle, kernels, MACHINE, target)
    assert found == bound(planned, kernels, MACHINE, target)
    assert taken >= found.seconds - 1e-9
    assert found.gap(taken) >= -1e-9


def test_names_do_not_matter() -> None:
    cycle = iteration(small())
    target = Target(device_budget=5 * PAGE, has_nvme=True)
    kernels = seconds_of(cycle, 0.01)

    again = [renamed(graph, other_names(cycle)) for graph in cycle]
    assert bound(again, kernels, MACHINE, target) == bound(cycle, kernels, MACHINE, target)
