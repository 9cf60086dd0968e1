"""Free ranges: nothing overlaps, nothing is lost, neighbours are joined."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zcompile.runtime.freelist import FreeList

TOTAL = 64


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 16), st.integers(0, 99))))
def test_taken_ranges_never_overlap_and_no_byte_is_lost(
    actions: list[tuple[bool, int, int]],
) -> None:
    free = FreeList()
    free.give(0, TOTAL)
    taken: list[tuple[int, int]] = []
    for takes, nbytes, which in actions:
        if takes:
            start = free.take(nbytes)
            if start is not None:
                taken.append((start, nbytes))
        elif taken:
            free.give(*taken.pop(which % len(taken)))
        used = sorted(byte for start, size in taken for byte in range(start, start + size))
        assert len(used) == len(set(used))
        assert free.free_bytes == TOTAL - len(used)
    for extent in taken:
        free.give(*extent)
    assert free.take(TOTAL) == 0, "everything was joined again"


@given(st.lists(st.tuples(st.integers(0, TOTAL - 1), st.integers(1, 16)), max_size=20))
def test_a_range_is_taken_if_and_only_if_all_of_it_is_free(wishes: list[tuple[int, int]]) -> None:
    free = FreeList()
    free.give(0, TOTAL)
    used: set[int] = set()
    taken: list[tuple[int, int]] = []
    for start, nbytes in wishes:
        wanted = set(range(start, start + nbytes))
        if free.take_at(start, nbytes):
            assert not wanted & used
            used |= wanted
            taken.append((start, nbytes))
        else:
            assert wanted & used or start + nbytes > TOTAL
    assert free.free_bytes == TOTAL - len(used)
    for extent in taken:
        free.give(*extent)
    assert free.take_at(0, TOTAL)


def test_the_smallest_range_with_room_is_taken() -> None:
    free = FreeList()
    free.give(0, 50)
    free.give(60, 10)
    free.give(80, 20)
    assert free.take(10) == 60
    assert free.take(15) == 80
    assert free.take(51) is None


@pytest.mark.parametrize(("start", "nbytes"), [(0, 10), (5, 1), (9, 3), (15, 7)])
def test_freeing_twice_is_noticed(start: int, nbytes: int) -> None:
    free = FreeList()
    free.give(0, 10)
    free.give(20, 10)
    with pytest.raises(AssertionError, match="freed twice"):
        free.give(start, nbytes)
