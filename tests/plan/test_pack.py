"""Pack: copies held at once lie apart, also where there are too many to look at all of them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import many, placed
from tests.plan.test_passes import lean
from zcompile.ir import (
    Compute,
    Fetch,
    Release,
    Role,
    Schedule,
    Step,
    Target,
    Tier,
    Value,
    Wait,
    footprint,
    verify,
)
from zcompile.passes import pack
from zcompile.passes.free_space import FreeSpace
from zcompile.passes.pack import MAX_PAIRS, Pack

PAGE = 4096


@many
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_what_is_taken_is_apart(asked: list[tuple[bool, int]]) -> None:
    space = FreeSpace()
    held: list[tuple[int, int]] = []
    for is_given_back, number in asked:
        if is_given_back and held:
            space.give(*held.pop(number % len(held)))
            continue
        offset = space.take(number)
        assert (
            all(offset + number <= other or other + size <= offset for other, size in held if size)
            or not number
        )
        held.append((offset, number))
        assert offset + number <= space.nbytes or not number
    for each in held:
        space.give(*each)
    assert space.take(space.nbytes) == 0, "all that was given back is one piece again"


def window(num: int, ahead: int, sizes: tuple[int, ...]) -> Schedule:
    """A stream of ``num`` copies of which ``ahead`` are there at once."""
    values = tuple(
        Value(f"w{i}", sizes[i % len(sizes)] * PAGE, Role.PARAMETER, Tier.NVME) for i in range(num)
    )
    steps: list[Step] = []
    for i in range(num + ahead):
        if i >= ahead:
            steps += [Wait(i - ahead, f"w{i - ahead}"), Compute(f"k{i}", (f"w{i - ahead}",), ())]
            steps.append(Release(f"w{i - ahead}"))
        if i < num:
            steps.append(Fetch(i, f"w{i}", Tier.NVME))
    return Schedule("window", values, tuple(steps))


def test_very_many_copies_at_once_choose_in_time() -> None:
    num, ahead = 1_500, 300
    assert num * ahead > MAX_PAIRS
    packed = Pack()(window(num, ahead, (1,)), Target())
    verify(packed)
    assert packed.arena_bytes == ahead * PAGE == max(footprint(packed).arena)


def test_copies_of_several_sizes_waste_little_in_time() -> None:
    packed = Pack()(window(1_500, 300, (1, 4, 4, 2)), Target())
    verify(packed)
    assert packed.arena_bytes <= 1.02 * max(footprint(packed).arena)


@many
@given(placed)
def test_in_time_they_lie_apart_as_well(schedule: Schedule) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "MAX_PAIRS", -1)
        packed = Pack()(lean(schedule), Target())
    verify(packed, captured=schedule)
    assert packed.arena_bytes >= max(footprint(packed).arena, default=0)


def test_random_sizes_are_kept_apart_in_time() -> None:
    chance = Random(7)
    sizes = tuple(chance.randint(0, 50) for _ in range(97))
    packed = Pack()(window(1_500, 250, sizes), Target())
    verify(packed)
    assert packed.arena_bytes <= 1.3 * max(footprint(packed).arena)
