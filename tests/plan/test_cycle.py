"""The iteration as one cyclic program: pauses by hand, and what always holds of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.iterations import iteration, seconds_of, settings_of
from tests.plan.schedules import many
from tests.plan.small_models import small
from zcompile.ir import (
    Compute,
    Role,
    Schedule,
    Target,
    Update,
    footprint,
    operands,
    parse,
)
from zcompile.passes.cycle import Cycle, Pause, cycle_of

LAYER = 8192


def cycle(*, times: int = 1) -> Cycle:
    *passes, update = iteration(small())
    graphs = (*passes * times, update)
    return cycle_of(graphs, seconds_of(graphs, 0.5))


def pauses(found: Cycle, name: str) -> tuple[Pause, ...]:
    (value,) = (each for each in found.values if each.name == name)
    return value.pauses


def spans(found: Cycle, name: str) -> list[tuple[int, int]]:
    return [(pause.after, pause.until) for pause in pauses(found, name)]


def test_kernels_follow_one_another_graph_by_graph() -> None:
    found = cycle()
    assert [(kernel.name, kernel.run) for kernel in found.kernels] == [
        *(("f0", 0), ("f1", 0), ("last", 0), ("b0", 1), ("b1", 1)),
        *(("layers.0.weight", 2), ("layers.1.weight", 2)),
    ]
    assert found.kernel_s == 3.5
    held = [kernel.held_bytes for kernel in found.kernels]
    passes = [LAYER + 100, LAYER + 100, 200, 2 * LAYER + 100, 2 * LAYER + 100]
    assert held == [*passes, 3 * LAYER, 3 * LAYER]


def test_a_parameter_is_away_twice_clean_and_once_written() -> None:
    found = cycle()
    assert spans(found, "layers.0.weight") == [(0, 3), (3, 5), (5, 0)]
    assert [each.fresh for each in pauses(found, "layers.0.weight")] == [False, False, True]
    assert all(each.written and each.needed for each in pauses(found, "layers.0.weight"))
    assert len({each.version for each in pauses(found, "layers.0.weight")}) == 1
    assert found.covered(pauses(found, "layers.0.weight")[2]) == (range(6, 7), range(0))


def test_a_gradient_is_dead_once_it_has_been_used() -> None:
    found = cycle()
    until_update, afterwards = pauses(found, "layers.0.weight:grad")
    assert (until_update.after, until_update.until, until_update.live) == (3, 5, True)
    assert (afterwards.after, afterwards.until, afterwards.live) == (5, 3, False)


def test_a_state_rests_from_update_to_update() -> None:
    (pause,) = pauses(cycle(), "layers.0.weight:exp_avg")
    assert (pause.after, pause.until, pause.written, pause.fresh) == (5, 5, True, True)
    assert cycle().covered(pause) == (range(6, 7), range(5))


def test_an_accumulated_gradient_lives_on_and_need_not_come_back() -> None:
    first, second, afterwards = pauses(cycle(times=2), "layers.0.weight:grad")
    assert (first.live, first.needed, first.fresh) == (True, False, True)
    assert (second.live, second.needed, second.fresh) == (True, True, True)
    assert not afterwards.live


def test_activations_are_values_only_when_asked_for() -> None:
    x = replace(small()[0][0].values[0], held=True)
    (forward, backward), states = small()
    saved = replace(forward.values[1], role=Role.INTERMEDIATE)
    assert saved.name == "y"
    backward = replace(
        backward,
        values=(*backward.values, replace(saved, role=Role.ACTIVATION)),
        steps=(Compute("b", ("x", "layers.0.weight", "y"), ("layers.0.weight:grad",), LAYER),),
    )
    graphs = iteration(((forward, backward), states))
    seconds = seconds_of(graphs, 0.5)
    assert "y" not in [each.name for each in cycle_of(graphs, seconds).values]
    found = cycle_of(graphs, seconds, activations=True)
    live, dead = pauses(found, "y")
    assert (live.after, live.until, live.live, live.needed) == (2, 3, True, True)
    assert not dead.live
    assert next(each.maker for each in found.values if each.name == "y") == 2
    assert x.name not in [each.name for each in found.values]


def test_an_update_goes_piece_by_piece() -> None:
    graphs = iteration(small())
    found = cycle_of(graphs, seconds_of(graphs, 0.5), window_bytes=4096)
    assert [kernel.operand_bytes for kernel in found.kernels[-2:]] == [4096, 4096]


def test_a_kernel_without_a_time_is_named() -> None:
    with pytest.raises(ValueError, match="forward: no time is known for the kernel 'f0'"):
        cycle_of(iteration(small()), {})


@many
@given(settings_of(), st.integers(1, 3))
def test_every_kernel_uses_a_value_or_lies_in_one_pause_of_it(
    setting: tuple[tuple[Schedule, ...], Target, float], times: int
) -> None:
    (*passes, update), _, _ = setting
    graphs = (*passes * times, update)
    found = cycle_of(graphs, seconds_of(graphs, 0.1))
    used = [
        operands(step)
        for graph in graphs
        for step in graph.steps
        if isinstance(step, Compute | Update)
    ]
    for value in found.values:
        uses = [at for at, names in enumerate(used) if value.name in names]
        covered = [at for p in value.pauses for part in found.covered(p) for at in part]
        assert sorted([*uses, *covered]) == list(range(len(found.kernels)))
        assert [pause.after for pause in value.pauses] == uses
        assert [pause.until for pause in value.pauses] == [*uses[1:], uses[0]]
        for at, pause in enumerate(value.pauses):
            assert pause.fresh or pause.version == value.pauses[at - 1].version


def test_what_dies_with_a_kernel_is_not_there_beside_what_it_makes() -> None:
    forward, backward = (
        parse(
            f"""\
schedule {name}
value %h : 70000 B saved @ device
value %d : 100 B intermediate @ device
compute {name}({reads}) -> ({writes}) transient 30 B
{output}
"""
        )
        for name, reads, writes, output in (
            ("f", "", "%h", "output %h"),
            ("b", "%h", "%d", "output %d"),
        )
    )
    cycle = cycle_of([forward, backward], {"f": {"f": 1.0}, "b": {"b": 1.0}})
    # It holds what was saved and its transients, or what it makes: the footprint of the graph.
    assert cycle.kernels[1].held_bytes == 70_030 == footprint(backward).ordinary[0]
