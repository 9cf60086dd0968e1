"""What backward makes again of forward's saved values, and what it must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zcompile.ir import Compute, Rule, Schedule, ScheduleError, Target, parse, render, verify
from zcompile.ir.memory import peak_bytes
from zcompile.passes.placement import managed_values
from zcompile.passes.recompute import again_steps, apply, pairs, with_again, without_saved
from zcompile.passes.recomputing import Again, Recomputing
from zcompile.passes.repeatable import limits, taken, units

FORWARD = parse("""
schedule forward.0
value %x : 4096 B input @ device held
value %w0 : 1000 B parameter @ device
value %w1 : 1000 B parameter @ device
value %w2 : 1000 B parameter @ device
value %h0 : 8192 B saved @ device
value %m : 2048 B intermediate @ device
value %h1 : 16384 B saved @ device
value %small : 16 B intermediate @ device
value %y : 4096 B intermediate @ device
compute seg_0(%x, %w0) -> (%h0) transient 8192 B repeats
compute seg_1(%h0, %w1) -> (%m, %small) transient 2048 B repeats
compute seg_2(%m, %w2) -> (%h1) transient 20000 B repeats
compute seg_3(%h1) -> (%y) transient 4096 B
output %y
output %h0
output %small
output %h1
""")

BACKWARD = parse("""
schedule backward.0
value %t : 4096 B input @ device held
value %w1 : 1000 B parameter @ device
value %w2 : 1000 B parameter @ device
value %h0 : 8192 B saved @ device
value %small : 16 B activation @ device
value %h1 : 16384 B saved @ device
value %d1 : 16384 B intermediate @ device
value %d0 : 8192 B intermediate @ device
value %w2:grad : 1000 B gradient @ device
value %w1:grad : 1000 B gradient @ device
value %w0:grad : 1000 B gradient @ device
compute seg_0(%t, %h1) -> (%d1) transient 16384 B
compute seg_1(%d1, %w2, %small) -> (%d0, %w2:grad) transient 9192 B
compute seg_2(%d0, %h0, %w1) -> (%w1:grad, %w0:grad) transient 2000 B
output %w2:grad
output %w1:grad
output %w0:grad
""")

GRAPHS = {"forward.0": FORWARD, "backward.0": BACKWARD}


def inserted(dropped: set[str]) -> str:
    (pair,) = pairs(GRAPHS.values())
    before = set(render(BACKWARD).splitlines())
    lines = render(with_again(pair, dropped)).splitlines()
    return "\n".join(line for line in lines if line not in before)


def test_what_nobody_keeps_is_made_on_the_way() -> None:
    assert inserted({"h1"}) == "\n".join([
        "value %forward.0/m : 2048 B intermediate @ device",
        "recompute forward.0/seg_1(%h0, %w1) -> (%forward.0/m) transient 2048 B",
        "recompute forward.0/seg_2(%forward.0/m, %w2) -> (%h1) transient 20000 B",
    ])  # fmt: skip


def test_what_is_dropped_too_is_made_first_and_stays() -> None:
    found = inserted({"h0", "h1"}).splitlines()
    assert found == [
        "value %forward.0/x : 4096 B input @ device held",
        "value %w0 : 1000 B parameter @ device",
        "value %forward.0/m : 2048 B intermediate @ device",
        "recompute forward.0/seg_0(%forward.0/x, %w0) -> (%h0) transient 8192 B",
        "recompute forward.0/seg_1(%h0, %w1) -> (%forward.0/m) transient 2048 B",
        "recompute forward.0/seg_2(%forward.0/m, %w2) -> (%h1) transient 20000 B",
    ]


def test_it_stands_before_the_first_reader() -> None:
    steps = apply(GRAPHS, {"h0"})["backward.0"].steps
    kernels = [step.kernel for step in steps if isinstance(step, Compute)]
    assert kernels == ["seg_0", "seg_1", "forward.0/seg_0", "seg_2"]


@pytest.mark.parametrize("dropped", [set[str](), {"h0"}, {"h1"}, {"h0", "h1"}])
def test_without_it_there_is_what_was_captured(dropped: set[str]) -> None:
    found = apply(GRAPHS, dropped)
    for name, captured in GRAPHS.items():
        verify(found[name], captured=captured)
        assert parse(render(found[name])) == found[name]
    assert found["forward.0"].outputs == tuple(
        name for name in FORWARD.outputs if name not in dropped
    )


def test_nobody_moves_what_is_made_again() -> None:
    found = apply(GRAPHS, {"h1"})
    names = {each.name for each in managed_values((*found.values(),))}
    assert "h0" in names
    assert "h1" not in names


def test_forward_holds_less() -> None:
    target = Target()
    kept = peak_bytes(FORWARD, target)
    assert peak_bytes(without_saved(FORWARD, {"h0"}), target) < kept


def broken(schedule: Schedule) -> str:
    with pytest.raises(ScheduleError) as raised:
        verify(schedule, captured=BACKWARD)
    assert raised.value.rule is Rule.KERNELS
    return raised.value.why


def test_v5_a_kernel_that_runs_again_changes_no_gradient() -> None:
    made = apply(GRAPHS, {"h1"})["backward.0"]
    again = [*again_steps(made)][-1]
    steps = [
        replace(step, writes=("h1", "w0:grad")) if step is again else step for step in made.steps
    ]
    assert "w0:grad again, which is gradient" in broken(made.with_steps(tuple(steps)))


def test_v5_a_kernel_that_runs_again_changes_nothing_that_was_read() -> None:
    made = apply(GRAPHS, {"h0"})["backward.0"]
    again = next(again_steps(made))
    late = (*(step for step in made.steps if step is not again), again)
    assert "was read or made before" in broken(made.with_steps(late))


def test_v5_a_captured_kernel_is_still_there() -> None:
    made = apply(GRAPHS, {"h1"})["backward.0"]
    assert "2 kernels, but 3" in broken(made.with_steps(made.steps[:-1]))


def test_v5_only_what_is_saved_may_be_left_out() -> None:
    made = replace(FORWARD, outputs=FORWARD.outputs[1:])
    with pytest.raises(ScheduleError, match="outputs differ"):
        verify(made, captured=FORWARD)


def test_v1_what_is_made_again_is_there_when_it_is_read() -> None:
    made = apply(GRAPHS, {"h1"})["backward.0"]
    last = [*again_steps(made)][-1]
    first = made.steps.index(last)
    late = (*made.steps[:first], made.steps[first + 1], last, *made.steps[first + 2 :])
    with pytest.raises(ScheduleError):
        verify(made.with_steps(late), captured=BACKWARD)


def test_units_take_along_what_nobody_keeps() -> None:
    found = {unit.kernel: unit for unit in units(GRAPHS, {})}
    assert {name: unit.num_kernels for name, unit in found.items()} == {"seg_0": 1, "seg_2": 2}
    assert found["seg_2"].reads == {"h0"}
    assert found["seg_2"].nbytes == 16384


def test_kernels_that_do_not_repeat_lead_to_nothing() -> None:
    for once, left in (("seg_0", {"seg_2"}), ("seg_1", {"seg_0"}), ("seg_2", {"seg_0"})):
        steps = (
            replace(step, repeats=False)
            if isinstance(step, Compute) and step.kernel == once
            else step
            for step in FORWARD.steps
        )
        graphs = {**GRAPHS, "forward.0": FORWARD.with_steps(tuple(steps))}
        assert {unit.kernel for unit in units(graphs, {})} == left


def test_what_is_pinned_is_kept() -> None:
    assert {unit.kernel for unit in units(GRAPHS, {}, {"h1"})} == {"seg_0"}


def test_a_limit_cuts_chains() -> None:
    seconds = {"forward.0": {"seg_0": 1.0, "seg_1": 0.5, "seg_2": 0.5}}
    found = units(GRAPHS, seconds)
    assert [unit.kernel for unit in found] == ["seg_2", "seg_0"], "the cheaper for each byte first"
    assert [unit.kernel for unit in taken(found, 16384)] == ["seg_2"], "seg_0 would lengthen it"
    assert [unit.kernel for unit in taken(found, 24576)] == ["seg_2", "seg_0"]
    assert limits(found)[0] == 16384
    assert limits(found)[-1] >= 24576


def test_as_little_as_fits_is_made_again() -> None:
    ways = Recomputing(GRAPHS, {"forward.0": {"seg_0": 1.0, "seg_2": 0.1}}, frozenset())

    def fits(least: int) -> Again | None:
        return ways.least(lambda again: sum(unit.nbytes for unit in again.units) >= least)

    few, all_of_it = fits(1), fits(20000)
    assert few is not None
    assert few.dropped == {"h1"}
    assert all_of_it is not None
    assert all_of_it.dropped == {"h0", "h1"}
    assert fits(50000) is None
    assert "h1" in dict(few.reasons())


def test_cheaper_is_what_takes_less_than_moving() -> None:
    seconds = {"forward.0": {"seg_0": 1.0, "seg_1": 0.0, "seg_2": 1e-9}}
    assert Recomputing(GRAPHS, seconds, frozenset()).cheaper().dropped == {"h1"}
