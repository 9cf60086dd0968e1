"""What a schedule holds, byte by byte."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import captured, layers, many, placed
from zcompile.ir import (
    Schedule,
    Target,
    arena_peak_bytes,
    device_profile,
    footprint,
    held_at,
    host_profile,
    parse,
    peak_bytes,
)
from zcompile.passes.lean import lean_plan

GRAPH = parse("""\
schedule s
value %x : 10 B input @ device
value %kept : 20 B input @ device held
value %unread : 40 B activation @ device
value %w : 5000 B parameter @ nvme
value %c : 100 B parameter @ host
value %w:grad : 1000 B gradient @ host
value %h : 300 B intermediate @ device
value %y : 7 B intermediate @ device
fetch %w <- nvme as t0
fetch %c <- host as t1
wait %w for t0
wait %c for t1
compute k0(%x, %w, %c) -> (%h, %w:grad) transient 2000 B
release %c
offload %w:grad -> host as t2
compute k1(%h, %kept) -> (%y) transient 1 B
release %w:grad after t2
release %w
output %y
output %w:grad
""")


def test_ordinary_memory() -> None:
    start = 10 + 20 + 40
    after_k0 = 20 + 40 + 300 + 1000  # x is dead, and so are transients
    end = 20 + 40 + 7 + 1000
    assert footprint(GRAPH).ordinary == (
        *[start] * 4,
        start + 2000,
        *[after_k0] * 2,
        after_k0 + 1,
        *[end - 1000] * 2,
    )


def test_the_arena_counts_pages() -> None:
    assert footprint(GRAPH).arena == (8192, *[12288] * 4, *[8192] * 4, 0)


def test_what_a_kernel_leaves_counts_where_its_transients_are_fewer() -> None:
    schedule = parse("""\
        schedule s
        value %x : 10 B input @ device
        value %y : 50 B intermediate @ device
        compute k(%x) -> (%y) transient 3 B
        output %y
    """)
    assert footprint(schedule).ordinary == (50,)


def test_the_device_profile_adds_what_is_reserved() -> None:
    held = footprint(GRAPH)
    total = [5 + a + b for a, b in zip(held.ordinary, held.arena, strict=True)]
    assert device_profile(GRAPH, Target(reserved_bytes=5)) == total
    assert peak_bytes(GRAPH, Target(reserved_bytes=5)) == max(total)


def test_the_host_holds_homes_and_what_arrives() -> None:
    profile = host_profile(GRAPH, Target(host_reserved_bytes=5))
    page = 4096  # a home takes whole pages
    assert profile == [*[5 + page] * 6, *[5 + 2 * page] * 4]


def test_a_schedule_without_steps() -> None:
    nothing = Schedule("s", (), (), arena_bytes=4096)
    assert device_profile(nothing, Target()) == []
    assert peak_bytes(nothing, Target(reserved_bytes=5)) == 4101
    assert peak_bytes(replace(nothing, vacates=True), Target(reserved_bytes=5)) == 5


def test_held_at_names_what_the_footprint_counts() -> None:
    names = [value.name for value in held_at(GRAPH, 4)]
    assert names == ["x", "kept", "unread", "w", "c", "w:grad", "h"]
    assert [value.name for value in held_at(GRAPH, 9)] == ["kept", "unread", "w", "y"]


@many
@given(placed, st.integers(0, 9000))
def test_a_static_arena_is_there_all_the_time(schedule: Schedule, reserved: int) -> None:
    plan = replace(lean_plan(schedule, Target()), vacates=False)
    target = Target(reserved_bytes=reserved)
    ordinary = footprint(plan).ordinary
    if plan.arena_bytes:
        assert device_profile(plan, target) == [
            reserved + plan.arena_bytes + each for each in ordinary
        ]


@many
@given(placed, st.integers(0, 9000))
def test_an_arena_that_is_vacated_counts_its_copies(schedule: Schedule, reserved: int) -> None:
    plan = lean_plan(schedule, Target())
    held = footprint(plan)
    profile = device_profile(plan, Target(reserved_bytes=reserved))
    assert profile == [reserved + a + b for a, b in zip(held.ordinary, held.arena, strict=True)]
    assert arena_peak_bytes(plan) == max(held.arena)


def test_the_peak_of_a_static_arena_is_its_size() -> None:
    plan = replace(GRAPH, arena_bytes=40_960)
    assert arena_peak_bytes(plan) == 40_960
    assert arena_peak_bytes(replace(plan, vacates=True)) == arena_peak_bytes(GRAPH) == 12_288


@many
@given(captured)
def test_with_all_homes_on_the_device_the_arena_is_empty(schedule: Schedule) -> None:
    assert not any(footprint(schedule).arena)
    assert not any(host_profile(schedule, Target()))


def test_a_gradient_counts_until_its_release() -> None:
    plan = lean_plan(layers(4), Target())
    sizes = {value.name: value.nbytes for value in plan.values}
    held = footprint(plan).ordinary
    # At the end only the input, which is held, and the last hidden value, never read.
    assert held[-1] == sizes["x"]
