"""Simulated times: worked out by hand for small plans, and bounded for random ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import layers, many, placed
from zcompile.ir import (
    Channel,
    Compute,
    Hardware,
    KernelSeconds,
    Kind,
    Link,
    Offload,
    Schedule,
    Target,
    Tier,
    Update,
    channel_in,
    channel_of,
    channel_out,
    kernel_name,
    parse,
)
from zcompile.ir.schedule import Fetch
from zcompile.passes.clock import Move
from zcompile.passes.pipeline import PIPELINE, run_within_budget
from zcompile.passes.simulate import Simulation, StepTime, simulate

MEGABYTE_PER_S = 1e6
FREE = Hardware(
    name="nothing shared",
    source="made up",
    capacities={},
    links={channel: Link(bandwidth_bytes_per_s=MEGABYTE_PER_S) for channel in Channel},
    flops_per_s={Kind.MATMUL: {"float32": 1.0}},
    memory_bytes_per_s=1.0,
)
ONE_DISK = replace(
    FREE,
    links={
        channel: Link(
            bandwidth_bytes_per_s=MEGABYTE_PER_S,
            latency_s=0.001,
            uses=(("disk", 1.0), ("cores", 0.5)) if "nvme" in channel else (),
        )
        for channel in Channel
    },
    compute_uses=(("cores", 1.0),),
    update_uses=(("cores", 1.0),),
)

TWO_LAYERS = parse(
    """\
schedule s
value %x : 8 B input @ device
value %a : 1000000 B parameter @ nvme
value %b : 3000000 B parameter @ nvme
value %h : 8 B intermediate @ device
value %g : 2000000 B gradient @ host
fetch %a <- nvme as t0
fetch %b <- nvme as t1
wait %a for t0
compute k0(%x, %a) -> (%h) transient 0 B
wait %b for t1
compute k1(%h, %b) -> (%g) transient 0 B
offload %g -> host as t2
release %g after t2
release %a
release %b
"""
)
SECONDS = {"s": {"k0": 2.0, "k1": 1.0}}


def test_copies_queue_and_hide_behind_kernels() -> None:
    (graph,) = simulate([TWO_LAYERS], SECONDS, FREE).graphs
    assert graph.moves == (
        Move(Channel.NVME_READ, "a", 1_000_000, 0.0, 0.0, 1.0),
        Move(Channel.NVME_READ, "b", 3_000_000, 0.0, 1.0, 4.0),
        Move(Channel.D2H, "g", 2_000_000, 5.0, 5.0, 7.0),
    )
    now = StepTime(0.0, 0.0, 0.0)
    assert graph.steps == (
        *(now, now),
        StepTime(0.0, 1.0, 1.0),
        StepTime(1.0, 3.0, 0.0),
        StepTime(3.0, 4.0, 1.0),
        StepTime(4.0, 5.0, 0.0),
        StepTime(5.0, 5.0, 0.0),
        StepTime(5.0, 7.0, 2.0),
        *(StepTime(7.0, 7.0, 0.0),) * 2,
    )
    assert graph.exposed_s == 4.0


def test_what_shares_a_resource_slows_down() -> None:
    cores = replace(
        FREE,
        links={
            **FREE.links,
            Channel.NVME_READ: Link(bandwidth_bytes_per_s=1e6, uses=(("cores", 0.5),)),
        },
        compute_uses=(("cores", 1.0),),
    )
    # From 1 s on k0 and the second copy share: both run at 2/3, so k0 takes 3 s, and the copy,
    # with 1 s of its 3 left, ends a second after it.
    simulation = simulate([TWO_LAYERS], SECONDS, cores)
    (graph,) = simulation.graphs
    computing, waiting = graph.steps[3], graph.steps[4]
    assert (computing.end_s, computing.exposed_s) == pytest.approx((4.0, 1.0))
    assert (waiting.end_s, waiting.exposed_s) == pytest.approx((5.0, 1.0))
    assert simulation.seconds == pytest.approx(8.0)
    assert simulation.busy_s == pytest.approx({Channel.NVME_READ: 5.0, Channel.D2H: 2.0})


def test_graphs_follow_each_other() -> None:
    twice = simulate([TWO_LAYERS, TWO_LAYERS], SECONDS, FREE)
    assert twice.seconds == 14.0
    first, second = twice.graphs
    assert [move.start_s - 7.0 for move in second.moves] == [each.start_s for each in first.moves]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"s: no time is known for the kernel 'k1'"):
        simulate([TWO_LAYERS], {"s": {"k0": 1.0}}, FREE)
    no_file = replace(FREE, links={Channel.H2D: FREE.links[Channel.H2D]})
    with pytest.raises(ValueError, match="has no link nvme_read; it has h2d"):
        simulate([TWO_LAYERS], SECONDS, no_file)


def test_no_schedules_take_no_time() -> None:
    assert simulate([], {}, FREE) == Simulation((), {})


kernel_times = st.sampled_from([0.0, 1e-4, 0.01, 0.5])


@many
@given(placed, st.booleans(), st.sampled_from([FREE, ONE_DISK]), st.data())
def test_no_plan_is_faster_than_its_kernels_or_its_copies(
    captured: Schedule, lean: bool, hardware: Hardware, data: st.DataObject
) -> None:
    planned = _planned(captured, lean)
    seconds = {planned.name: {k: data.draw(kernel_times) for k in _kernels(planned)}}
    simulation = simulate([planned], seconds, hardware)
    (graph,) = simulation.graphs
    kernels = sum(seconds[planned.name][name] for name in _kernels(planned))
    assert simulation.seconds >= kernels - 1e-9
    assert simulation.seconds == pytest.approx(kernels + graph.exposed_s)
    for channel, needed in _copy_seconds(planned, hardware).items():
        assert simulation.seconds >= needed - 1e-9
        assert needed - 1e-9 <= simulation.busy_s[channel] <= simulation.seconds + 1e-9
    _check_times(planned, graph.steps, graph.moves)
    assert simulate([planned], seconds, hardware) == simulation


@many
@given(placed, st.data())
def test_nothing_shared_is_never_slower(captured: Schedule, data: st.DataObject) -> None:
    planned = _planned(captured, lean=False)
    seconds: KernelSeconds = {planned.name: {k: data.draw(kernel_times) for k in _kernels(planned)}}
    alone = replace(
        ONE_DISK,
        links={c: replace(link, uses=()) for c, link in ONE_DISK.links.items()},
    )
    free = simulate([planned], seconds, alone).seconds
    assert free <= simulate([planned], seconds, ONE_DISK).seconds + 1e-9


def test_a_long_schedule() -> None:
    planned = _planned(layers(2_000), lean=False)
    seconds = {planned.name: dict.fromkeys(_kernels(planned), 0.001)}
    simulation = simulate([planned], seconds, ONE_DISK)
    assert len(simulation.graphs[0].steps) == len(planned.steps)


def _planned(captured: Schedule, lean: bool) -> Schedule:
    target = Target(has_nvme=True, homes={v.name: v.home for v in captured.values})
    passes = tuple(p for p in PIPELINE if not lean or p.name not in {"keep", "defer", "prefetch"})
    return run_within_budget(passes, captured, target).schedule


def _kernels(schedule: Schedule) -> list[str]:
    return [kernel_name(s) for s in schedule.steps if isinstance(s, Compute | Update)]


def _copy_seconds(schedule: Schedule, hardware: Hardware) -> dict[Channel, float]:
    nbytes = {value.name: value.nbytes for value in schedule.values}
    found: dict[Channel, float] = {}
    for step in schedule.steps:
        if isinstance(step, Fetch | Offload):
            channel = channel_of(step)
            took = hardware.links[channel].travel_s(nbytes[step.value])
            found[channel] = found.get(channel, 0.0) + took
    return found


def _check_times(schedule: Schedule, steps: tuple[StepTime, ...], moves: tuple[Move, ...]) -> None:
    assert len(steps) == len(schedule.steps)
    for before, after in itertools.pairwise(steps):
        assert before.start_s <= before.end_s == after.start_s
    asked = [s.value for s in schedule.steps if isinstance(s, Fetch | Offload)]
    assert sorted(move.value for move in moves) == sorted(asked)
    for channel in Channel:
        queue = [move for move in moves if move.channel is channel]
        assert queue == sorted(queue, key=lambda move: move.asked_s)
        for earlier, later in itertools.pairwise(queue):
            assert earlier.end_s <= later.start_s
        assert all(move.asked_s <= move.start_s <= move.end_s for move in queue)


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.NVME])
def test_channels_of_tiers(tier: Tier) -> None:
    assert {channel_in(tier), channel_out(tier)} == (
        {Channel.H2D, Channel.D2H} if tier is Tier.HOST else {Channel.NVME_READ, Channel.NVME_WRITE}
    )
