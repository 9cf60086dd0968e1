"""Every rule of the verifier, broken; and what an error says."""

from __future__ import annotations

import pickle
import re

import pytest

from zcompile.ir import (
    ALL_RULES,
    Compute,
    Role,
    Rule,
    Schedule,
    ScheduleError,
    Target,
    Value,
    parse,
    strip,
    verify,
)

VALUES = """\
schedule s
value %x : 8 B input @ device
value %w : 100 B parameter @ nvme
value %u : 5000 B parameter @ nvme
value %g : 100 B gradient @ host
value %y : 8 B intermediate @ device
"""

# A parameter that is read.
FETCH = "fetch %w <- nvme as t0"
WAIT = "wait %w for t0"
USE = "compute use(%x, %w) -> (%y) transient 0 B"
FREE = "release %w"
# A parameter that is changed.
CHANGE = "update change(%w) -> (%w) transient 0 B"
BACK = "offload %w -> nvme as t1"
FREE_AFTER = "release %w after t1"
# A gradient that is made.
MAKE = "compute make(%x) -> (%g) transient 0 B"
LEAVE = "offload %g -> host as t2"
GONE = "release %g after t2"
# Slots.
U_AT = "fetch %u <- nvme as t5 at {}"
W_AT = "fetch %w <- nvme as t6 at {}"
REST = ("wait %u for t5", "wait %w for t6", "release %u", "release %w")


def of(*lines: str, arena_bytes: int = 0, vacates: bool = False) -> Schedule:
    how = " vacated" if vacates else ""
    return parse("\n".join([VALUES, *lines, f"arena {arena_bytes} B{how}"]))


RIGHT = [
    of(),
    of(FETCH, WAIT, USE, FREE, "output %y"),
    of(FETCH, WAIT, CHANGE, BACK, FREE_AFTER),
    of(FETCH, WAIT, CHANGE, BACK, USE, FREE_AFTER, "output %w"),
    of(MAKE, LEAVE, GONE, "output %g"),
    of(MAKE, LEAVE, GONE, MAKE, "offload %g -> host as t3", "release %g after t3"),
    of(MAKE, LEAVE, GONE, "fetch %g <- host as t3", "wait %g for t3", "release %g"),
    of(U_AT.format(0), W_AT.format(8192), *REST, arena_bytes=12288),
    of(U_AT.format(4096), W_AT.format(0), *REST, arena_bytes=12288),
    of(U_AT.format(4096), W_AT.format(0), *REST, arena_bytes=12288, vacates=True),
]


@pytest.mark.parametrize("schedule", RIGHT)
def test_right_schedules_pass(schedule: Schedule) -> None:
    verify(schedule, Target(device_budget=50_000, host_budget=4096), captured=strip(schedule))


BROKEN: list[tuple[Rule, Schedule, str]] = [
    # V0: names.
    (Rule.FORM, of("value %x : 8 B input @ device"), "there are two values %x"),
    (Rule.FORM, of("value %z : 8 B input @ host"), "%z is no managed value"),
    (Rule.FORM, of("release %z"), "step 0: there is no value %z"),
    (Rule.FORM, of("compute k(%x) -> (%z) transient 0 B"), "step 0: there is no value %z"),
    (Rule.FORM, of("output %z"), "there is no value %z to output"),
    (Rule.FORM, Schedule("s", (Value("x", -1, Role.INPUT),), ()), "%x has -1 B"),
    (Rule.FORM, Schedule("s", (Value("a b", 1, Role.INPUT),), ()), "'a b' is not legal"),
    (Rule.FORM, Schedule("a b", (), ()), "'a b' is not legal"),
    (Rule.FORM, Schedule("s", (), (Compute("k k", (), ()),)), "'k k' is not legal"),
    # V1: on the device at every read.
    (Rule.RESIDENT, of(USE), "step 0: touches %w, which is not on the device"),
    (Rule.RESIDENT, of(FETCH, USE, WAIT, FREE), "step 1: touches %w before t0 is waited for"),
    (Rule.RESIDENT, of(FETCH, WAIT, FREE, USE), "step 3: touches %w, which is not on the"),
    (Rule.RESIDENT, of(MAKE, LEAVE, GONE, "compute k(%g) -> () transient 0 B"), "touches %g"),
    (Rule.RESIDENT, of(MAKE, LEAVE, GONE, "update k() -> (%g) transient 0 B"), "touches %g"),
    (Rule.RESIDENT, of(CHANGE), "step 0: touches %w"),
    (Rule.RESIDENT, of("compute k() -> (%w) transient 0 B"), "step 0: touches %w"),
    (Rule.RESIDENT, of("compute k(%y) -> () transient 0 B"), "touches %y before it is made"),
    (Rule.RESIDENT, of("compute k(%y) -> (%y) transient 0 B"), "touches %y before it is made"),
    (Rule.RESIDENT, of("output %y"), "output %y is not made"),
    # V2: copies and tickets.
    (Rule.RETURNED, of(FETCH, WAIT, USE), "%w still on the device"),
    (Rule.RETURNED, of(FETCH), "%w still on the device"),
    (Rule.RETURNED, of(FETCH, FREE, WAIT), "releases %w before t0 is waited for"),
    (Rule.RETURNED, of(FETCH, WAIT, FREE, FREE), "releases %w, of which no copy is held"),
    (Rule.RETURNED, of(FETCH, WAIT, WAIT, FREE), "waits for t0, which brings no %w"),
    (Rule.RETURNED, of(FETCH, "wait %w for t1", FREE), "waits for t1, which brings no %w"),
    (Rule.RETURNED, of(WAIT), "waits for t0, which brings no %w"),
    (Rule.RETURNED, of(FETCH, WAIT, FREE, FETCH, WAIT, FREE), "t0 is no new ticket"),
    (Rule.RETURNED, of(FETCH, "fetch %w <- nvme as t1", WAIT, FREE), "the device already holds"),
    (Rule.RETURNED, of("fetch %w <- host as t0", WAIT, FREE), "from host; its home is nvme"),
    (Rule.RETURNED, of("fetch %x <- device as t0"), "from device; its home is device"),
    (Rule.RETURNED, of("release %x"), "releases %x, of which no copy is held"),
    (Rule.RETURNED, of("offload %x -> device as t0"), "to device; its home is device"),
    (Rule.RETURNED, of(FETCH, WAIT, BACK, FREE_AFTER), "no newer than its home"),
    (Rule.RETURNED, of(BACK), "offloads %w, which is not on the device"),
    (Rule.RETURNED, of(FETCH, BACK, WAIT, FREE_AFTER), "offloads %w, which is not on the device"),
    (Rule.RETURNED, of(FETCH, WAIT, CHANGE, FREE), "drops the only valid copy of %w"),
    (Rule.RETURNED, of(FETCH, WAIT, CHANGE, BACK, FREE), "after the wrong offload; t1 is due"),
    (Rule.RETURNED, of(FETCH, WAIT, FREE_AFTER), "after the wrong offload; nothing is due"),
    (Rule.RETURNED, of(FETCH, WAIT, CHANGE, BACK, "release %w after t0"), "t1 is due"),
    (Rule.RETURNED, of(FETCH, WAIT, CHANGE, FREE_AFTER, BACK), "drops the only valid copy"),
    (Rule.RETURNED, of(FETCH, WAIT, CHANGE, BACK, CHANGE, FREE_AFTER), "while t1 copies it out"),
    (Rule.RETURNED, of(MAKE), "%g still on the device"),
    (Rule.RETURNED, of(MAKE, LEAVE), "%g still on the device"),
    (Rule.RETURNED, of(MAKE, LEAVE, "release %g"), "t2 is due"),
    (Rule.RETURNED, of(MAKE, "offload %g -> nvme as t2", GONE), "to nvme; its home is host"),
    (Rule.RETURNED, of("fetch %g <- host as t3", "wait %g for t3", "release %g", MAKE, LEAVE, GONE),
     "of which host has no valid copy"),
    (Rule.RETURNED, of(MAKE, LEAVE, "fetch %g <- host as t3", "wait %g for t3", "release %g"),
     "fetches %g, which the device already holds"),
    # V3: slots in the arena.
    (Rule.SPACE, of(U_AT.format(0), W_AT.format(4096), *REST, arena_bytes=12288),
     "puts %w at 4096, where %u still lies"),
    (Rule.SPACE, of(U_AT.format(0), W_AT.format(0), *REST, arena_bytes=12288), "where %u still"),
    (Rule.SPACE, of(W_AT.format(4096), U_AT.format(0), *REST, arena_bytes=12288), "where %w still"),
    (Rule.SPACE, of(U_AT.format(0), W_AT.format(8200), *REST, arena_bytes=20000), "no multiple"),
    (Rule.SPACE, of(U_AT.format(0), W_AT.format(8192), *REST, arena_bytes=12287), "past the arena"),
    (Rule.SPACE, of(U_AT.format(0), W_AT.format(4096), *REST, arena_bytes=12288, vacates=True),
     "puts %w at 4096, where %u still lies"),
    (Rule.SPACE, of(U_AT.format(0), W_AT.format(8192), *REST, arena_bytes=8192, vacates=True),
     "past the arena"),
    (Rule.SPACE, of(U_AT.format(0), W_AT.removesuffix(" at {}"), *REST, arena_bytes=12288),
     "gives %w no place"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "schedule", "why"), BROKEN)
def test_a_broken_rule_is_named(rule: Rule, schedule: Schedule, why: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(why)) as error:
        verify(schedule)
    assert error.value.rule is rule


@pytest.mark.parametrize(("rule", "schedule", "why"), BROKEN)
def test_a_rule_that_is_not_asked_for_is_not_checked(
    rule: Rule, schedule: Schedule, why: str
) -> None:
    assert why
    if rule is not Rule.FORM:
        verify(schedule, rules={Rule.FORM})


def test_every_rule_has_a_test_that_breaks_it() -> None:
    assert {rule for rule, _, _ in BROKEN} == ALL_RULES - {Rule.BUDGET, Rule.KERNELS}


def test_v4_device_budget() -> None:
    schedule = of(FETCH, WAIT, USE.replace("transient 0", "transient 70"), FREE, "output %y")
    most = 5 + 8 + 4096 + 70
    verify(schedule, Target(device_budget=most, reserved_bytes=5))
    with pytest.raises(ScheduleError, match=r"step 2: .* over the device_budget") as error:
        verify(schedule, Target(device_budget=most - 1, reserved_bytes=5))
    assert error.value.rule is Rule.BUDGET


APART = (
    *("fetch %u <- nvme as t0 at 0", "wait %u for t0", "compute use(%u) -> () transient 9 B"),
    *("release %u", "compute big(%x) -> (%y) transient 9000 B", "output %y"),
)
"""The arena is fullest at step 2, ordinary memory at step 4."""


@pytest.mark.parametrize(("vacates", "most"), [(False, 17_200), (True, 9_008)])
def test_v4_counts_an_arena_that_is_vacated_only_while_it_holds_copies(
    vacates: bool, most: int
) -> None:
    schedule = of(*APART, arena_bytes=8192, vacates=vacates)
    verify(schedule, Target(device_budget=most))
    with pytest.raises(ScheduleError, match=f"step 4: {most} B held, over the device"):
        verify(schedule, Target(device_budget=most - 1))


def test_v4_host_budget() -> None:
    schedule = of(MAKE, LEAVE, GONE)
    verify(schedule, Target(host_budget=4099, host_reserved_bytes=3))
    with pytest.raises(ScheduleError, match=r"step 1: .* over the host_budget") as error:
        verify(schedule, Target(host_budget=4098, host_reserved_bytes=3))
    assert error.value.rule is Rule.BUDGET


@pytest.mark.parametrize(
    ("captured", "why"),
    [
        (of(USE.replace("use", "other")), "kernel 0 is compute use"),
        (of(USE, USE), "1 kernels, but 2 were captured"),
        (of(), "1 kernels, but 0 were captured"),
        (of(USE, "output %y"), "values or outputs differ"),
        (of(USE, "value %z : 1 B input @ device"), "values or outputs differ"),
    ],
)
def test_v5_kernels(captured: Schedule, why: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(why)) as error:
        verify(of(FETCH, WAIT, USE, FREE), captured=captured)
    assert error.value.rule is Rule.KERNELS


def test_an_error_can_be_sent_to_another_process() -> None:
    with pytest.raises(ScheduleError) as error:
        verify(of(USE))
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_strip_leaves_the_kernels() -> None:
    schedule = of(FETCH, WAIT, USE, FREE, CHANGE, MAKE, LEAVE, GONE, arena_bytes=1, vacates=True)
    assert strip(schedule) == of(USE, CHANGE, MAKE)


def test_an_error_shows_the_neighbourhood() -> None:
    with pytest.raises(ScheduleError) as error:
        verify(of(MAKE, LEAVE, GONE, FETCH, USE, WAIT, FREE))
    assert str(error.value) == (
        "V1: s, step 4: touches %w before t0 is waited for\n"
        "       2  release %g after t2\n"
        "       3  fetch %w <- nvme as t0\n"
        "->     4  compute use(%x, %w) -> (%y) transient 0 B\n"
        "       5  wait %w for t0\n"
        "       6  release %w"
    )
    assert error.value.step == 4
