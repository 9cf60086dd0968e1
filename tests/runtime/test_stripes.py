"""The arithmetic of stripes: every byte has one place, and the places have their bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zcompile.ir import PAGE_BYTES
from zcompile.runtime.stripes import MOST_STRIPES, STRIPE_BYTES, Stripes, share_of

Growth = tuple[frozenset[int], int, int]
"""Which files grow, by how many stripes each, and of how many pages a stripe is."""

GROWTHS = st.lists(
    st.tuples(
        st.frozensets(st.integers(0, 3), min_size=1), st.integers(1, 3), st.sampled_from([1, 2, 4])
    ),
    min_size=1,
    max_size=6,
)


def grown(growths: list[Growth]) -> tuple[Stripes, list[int]]:
    """Return the space after these growths, and where its four files end."""
    stripes, ends = Stripes(PAGE_BYTES), [PAGE_BYTES] * 4
    for files, num_stripes, num_pages in growths:
        stripe_bytes = num_pages * PAGE_BYTES
        share = num_stripes * stripe_bytes
        stripes = stripes.grown(share, stripe_bytes, [(each, ends[each]) for each in sorted(files)])
        for each in files:
            ends[each] += share
    return stripes, ends


@given(GROWTHS)
def test_every_page_has_one_place_and_no_file_a_hole(growths: list[Growth]) -> None:
    stripes, ends = grown(growths)
    places: set[tuple[int, int]] = set()
    for offset in range(PAGE_BYTES, stripes.end, PAGE_BYTES):
        (piece,) = stripes.pieces(offset, PAGE_BYTES)
        places.add((piece.file, piece.offset))
    assert places == {
        (file, offset)
        for file, end in enumerate(ends)
        for offset in range(PAGE_BYTES, end, PAGE_BYTES)
    }


@given(GROWTHS, st.data())
def test_pieces_join_and_lead_back(growths: list[Growth], data: st.DataObject) -> None:
    stripes, _ = grown(growths)
    offset = data.draw(st.integers(PAGE_BYTES, stripes.end - 1))
    nbytes = data.draw(st.integers(1, stripes.end - offset))
    done = 0
    for piece in stripes.pieces(offset, nbytes):
        assert piece.start == done
        assert (offset + done) % PAGE_BYTES == piece.offset % PAGE_BYTES
        (back,) = stripes.ranges(piece.file, piece.offset, piece.nbytes)
        assert back == (offset + done, piece.nbytes)
        done += piece.nbytes
    assert done == nbytes


@given(GROWTHS, st.data())
def test_a_range_of_a_file_is_found_in_the_space(
    growths: list[Growth], data: st.DataObject
) -> None:
    stripes, ends = grown(growths)
    file = data.draw(st.sampled_from([each for each in range(4) if ends[each] > PAGE_BYTES]))
    offset = data.draw(st.integers(PAGE_BYTES, ends[file] - 1))
    nbytes = data.draw(st.integers(1, ends[file] - offset))
    at = offset
    for start, length in stripes.ranges(file, offset, nbytes):
        (piece,) = stripes.pieces(start, length)
        assert (piece.file, piece.offset) == (file, at)
        at += length
    assert at == offset + nbytes


def test_one_file_is_one_piece_however_it_grew() -> None:
    stripes, end = Stripes(PAGE_BYTES), PAGE_BYTES
    for pages in (3, 1, 100):
        stripes = stripes.grown(pages * PAGE_BYTES, STRIPE_BYTES, [(0, end)])
        end += pages * PAGE_BYTES
    (piece,) = stripes.pieces(PAGE_BYTES, end - PAGE_BYTES)
    assert (piece.file, piece.offset, piece.nbytes) == (0, PAGE_BYTES, end - PAGE_BYTES)


@pytest.mark.parametrize("num_files", [2, 3])
def test_large_spaces_have_few_stripes(num_files: int) -> None:
    """Each is a mapping, of which a process may have 65,530."""
    stripes, ends = Stripes(PAGE_BYTES), [PAGE_BYTES] * num_files
    while stripes.end < 4 << 40:
        size = stripes.stripe_bytes(STRIPE_BYTES)
        share = 1024 * size
        stripes = stripes.grown(share, size, list(enumerate(ends)))
        ends = [each + share for each in ends]
    num_stripes = sum((each.end - each.start) // each.stripe_bytes for each in stripes.bands)
    assert num_stripes < 8 * MOST_STRIPES
    assert stripes.bands[0].stripe_bytes == STRIPE_BYTES


@given(st.integers(1, 1 << 30), st.integers(1, 5))
def test_shares_are_whole_stripes_and_enough(nbytes: int, num_files: int) -> None:
    share, stripe_bytes = share_of(nbytes, num_files, STRIPE_BYTES)
    assert share * num_files >= nbytes
    assert share % PAGE_BYTES == stripe_bytes % PAGE_BYTES == 0
    if num_files > 1:
        assert share % stripe_bytes == 0
        assert share - nbytes // num_files < max(stripe_bytes, PAGE_BYTES) + PAGE_BYTES
