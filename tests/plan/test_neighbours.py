"""Neighbours: which changes there are, and what they do to a placement."""

from __future__ import annotations

from zcompile.ir import Role, Schedule, Target, Tier, Value
from zcompile.passes.neighbours import Change, changed, changes
from zcompile.passes.place import Preference, place

KIB = 1 << 10
PARAMETERS = tuple(Value(f"w{at}", 64 * KIB, Role.PARAMETER) for at in range(4))
STATES = tuple(Value(f"w{at}:m", 64 * KIB, Role.STATE) for at in range(4))
VALUES = (*PARAMETERS, *STATES)
NOTHING = Schedule("nothing", (), ())
TARGET = Target(device_budget=0, host_budget=256 * KIB, has_nvme=True)
SWAP = Change(Tier.HOST, Role.PARAMETER, Role.STATE)


def test_only_what_a_slower_tier_holds_can_come() -> None:
    placement = place((NOTHING,), VALUES, (), TARGET)
    assert {placement.homes[each.name] for each in PARAMETERS} == {Tier.HOST}
    assert {placement.homes[each.name] for each in STATES} == {Tier.NVME}
    assert tuple(changes(placement, VALUES)) == (SWAP,)


def test_every_second_value_makes_room_for_the_first_of_the_other_kind() -> None:
    placement = place((NOTHING,), VALUES, (), TARGET)
    preference = changed(Preference(), placement, VALUES, SWAP)
    homes = place((NOTHING,), VALUES, (), TARGET, preference).homes
    on_host = [name for name, tier in homes.items() if tier is Tier.HOST]
    assert sorted(on_host) == ["w0:m", "w1", "w1:m", "w3"]


def test_a_change_names_every_value_once() -> None:
    placement = place((NOTHING,), VALUES, (), TARGET)
    for change in (SWAP, Change(Tier.DEVICE, Role.STATE, Role.PARAMETER)):
        preference = changed(Preference(), placement, VALUES, change)
        for order in (preference.order, preference.host_order):
            assert sorted(order or ()) == sorted(each.name for each in VALUES)
