"""How busy others kept the machine: from three clocks."""

from __future__ import annotations

import pytest

from zcompile.bench.others import Meter, disturbed
from zcompile.bench.record import Record


def test_what_this_process_did_is_not_others() -> None:
    before, after = Meter(10.0, 100.0, 5.0), Meter(12.0, 103.0, 6.0)
    assert after.others_since(before) == pytest.approx(1.0)


def test_less_than_nothing_is_nothing() -> None:
    # The kernel counts the machine by ticks, this process more finely.
    assert Meter(12.0, 100.5, 6.0).others_since(Meter(10.0, 100.0, 5.0)) == 0.0
    assert Meter(10.0, 101.0, 5.0).others_since(Meter(10.0, 100.0, 5.0)) == 0.0


def test_the_clocks_of_this_machine_only_go_on() -> None:
    before = Meter.now()
    after = Meter.now()
    assert after.clock_s >= before.clock_s
    assert after.busy_s >= before.busy_s
    assert after.own_s >= before.own_s


def test_a_tenth_of_all_processors_disturbs() -> None:
    assert disturbed(0.19, 2) is None
    assert disturbed(0.21, 2) is not None
    assert "idle" in str(disturbed(3.0, 16))


def test_the_record_tells(record: Record) -> None:
    assert record.as_json()["others_processors"] == pytest.approx(
        record.others_processors, abs=1e-3
    )
