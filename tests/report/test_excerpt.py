"""The readable form of a plan."""

from __future__ import annotations

from dataclasses import replace

from zcompile.ir import Compute, Release, Role, Schedule, Target, Tier, Value, parse
from zcompile.report.excerpt import LINE_WIDTH, MAX_WHOLE, header, steps_with_bytes
from zcompile.report.traffic import Traffic, planned_traffic
from zcompile.runtime.ledger import Channel

PLAN = parse("""
schedule forward.0
value %x : 1048576 B input @ device
value %w0 : 2097152 B parameter @ nvme
value %w1 : 4096 B parameter @ host
value %g : 2097152 B gradient @ nvme
value %y : 1048576 B intermediate @ device
fetch %w0 <- nvme as t0 at 0
fetch %w1 <- host as t1 at 2097152
wait %w0 for t0
wait %w1 for t1
compute seg_0(%x, %w0, %w1) -> (%y, %g) transient 3145728 B
release %w0
release %w1
offload %g -> nvme as t2
release %g after t2
output %y
arena 2101248 B
""")
TARGET = Target(device_budget=16 << 20, reserved_bytes=1 << 20)


def test_the_header_sums_up_the_plan_in_comments() -> None:
    assert header(PLAN, TARGET, "stream,pack") == [
        "# forward.0: 9 steps, 2 fetch, 2 wait, 1 compute, 3 release, 1 offload",
        "# pipeline  stream,pack",
        "# device    peak 7.0 MiB at step 4, budget 16.0 MiB",
        "# of it     static arena 2.0 MiB, reserved outside this graph 1.0 MiB",
        "# moves     2.0 MiB in 1 copy: NVMe read",
        "# moves     4.0 KiB in 1 copy: host to device",
        "# moves     2.0 MiB in 1 copy: NVMe write",
        "# holds     1 input @ device: 1.0 MiB",
        "# holds     1 parameter @ nvme: 2.0 MiB",
        "# holds     1 parameter @ host: 4.0 KiB",
        "# holds     1 gradient @ nvme: 2.0 MiB",
        "# holds     1 intermediate @ device: 1.0 MiB",
    ]


def test_what_is_saved_is_called_a_saved_activation() -> None:
    saved = (Value("s", 1 << 20, Role.SAVED), Value("t", 1 << 20, Role.SAVED, Tier.NVME))
    lines = header(replace(PLAN, values=(*PLAN.values, *saved)), TARGET, "")
    assert lines[-2:] == [
        "# holds     1 saved activation @ device: 1.0 MiB",
        "# holds     1 saved activation @ nvme: 1.0 MiB",
    ]


def test_a_vacated_arena_counts_what_it_holds() -> None:
    vacated = replace(PLAN, arena_bytes=1 << 30, vacates=True)
    assert header(vacated, TARGET, "")[3] == (
        "# of it     vacated arena 2.0 MiB, reserved outside this graph 1.0 MiB"
    )


def test_without_a_budget_it_says_so() -> None:
    assert "# device    peak 7.0 MiB at step 4, no budget" in header(
        PLAN, Target(reserved_bytes=1 << 20), ""
    )


def test_steps_stand_beside_the_bytes_held_then() -> None:
    lines = steps_with_bytes(PLAN, TARGET)
    assert lines[0] == " step  MiB held"
    assert lines[1] == "    0       4.0  fetch %w0 <- nvme as t0 at 0"
    assert lines[5] == (
        "    4       7.0  compute seg_0(%x, %w0, %w1) -> (%y, %g) transient 3145728 B"
    )
    assert len(lines) == 1 + len(PLAN.steps)


def long_plan(length: int) -> Schedule:
    """Return a plan whose step 70 holds most."""
    held = {70: 1 << 20}
    kernels = (Compute(f"k{at}", (), (), held.get(at, 0)) for at in range(length))
    return Schedule("long", (), tuple(kernels))


def test_of_a_long_plan_the_start_the_peak_and_the_end_are_shown() -> None:
    plan = long_plan(200)
    lines = steps_with_bytes(plan, Target())
    text = "\n".join(lines)
    for shown in (0, 15, 64, 70, 76, 184, 199):
        assert f"compute k{shown}(" in text
    for hidden in (16, 63, 77, 183):
        assert f"compute k{hidden}(" not in text
    assert "  ...            48 steps: 48 compute" in lines
    assert "  ...            107 steps: 107 compute" in lines


def test_all_of_it_is_shown_when_asked_for_or_when_it_is_short() -> None:
    assert len(steps_with_bytes(long_plan(200), Target(), whole=True)) == 201
    assert len(steps_with_bytes(long_plan(MAX_WHOLE), Target())) == MAX_WHOLE + 1


def test_a_plan_without_steps_has_a_header_alone() -> None:
    empty = Schedule("empty", (), ())
    assert steps_with_bytes(empty, Target()) == []
    assert header(empty, Target(), "")[0] == "# empty: 0 steps"


def test_lines_are_cut_at_the_width() -> None:
    reads = tuple(f"v{number}" for number in range(100))
    values = tuple(Value(name, 1, Role.INPUT) for name in reads)
    plan = Schedule("wide", values, (Compute("k", reads, ()),))
    (_, line) = steps_with_bytes(plan, Target())
    assert len(line) == LINE_WIDTH
    assert line.endswith("...")


def test_traffic_counts_each_copy_on_its_channel() -> None:
    away = Value("w", 100, Role.PARAMETER, Tier.NVME)
    assert planned_traffic(Schedule("s", (away,), (Release("w"),))) == {}
    assert planned_traffic(PLAN)[Channel.NVME_WRITE] == Traffic(1, 2 << 20)
