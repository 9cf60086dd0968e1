"""Cutting requests into blocks: every byte once, and only moves that direct I/O allows."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from zcompile.ir import PAGE_BYTES, page_aligned
from zcompile.runtime.blocks import Block, Route, Span, cut, split

BLOCK_BYTES = 4 * PAGE_BYTES


@st.composite
def spans(draw: st.DrawFn) -> Span:
    nbytes = draw(st.integers(0, 5 * BLOCK_BYTES))
    near_a_page = st.sampled_from(
        [page * PAGE_BYTES + byte for page in range(1, 9) for byte in (-2, -1, 0, 1, 2)]
    )
    slack = st.sampled_from([0, 1, PAGE_BYTES - 1, PAGE_BYTES])
    return Span(
        offset=draw(near_a_page),
        address=draw(near_a_page),
        nbytes=nbytes,
        memory_room=nbytes + draw(slack),
        file_room=nbytes + draw(slack),
        label="w",
    )


@given(spans())
def test_the_blocks_cover_the_span_once_and_in_order(span: Span) -> None:
    done = 0
    for block in split(span, BLOCK_BYTES):
        assert (block.offset, block.address) == (span.offset + done, span.address + done)
        assert 0 < block.nbytes <= BLOCK_BYTES
        done += block.nbytes
    assert done == span.nbytes


@given(spans())
def test_no_page_of_the_file_is_part_of_two_blocks(span: Span) -> None:
    for before, after in pairwise(split(span, BLOCK_BYTES)):
        assert (before.offset + before.nbytes) % PAGE_BYTES == 0
        assert after.offset % PAGE_BYTES == 0


@given(spans())
def test_whole_pages_travel_only_where_there_is_room(span: Span) -> None:
    for block in split(span, BLOCK_BYTES):
        if block.route is Route.BUFFERED:
            continue
        moved = page_aligned(block.nbytes)
        assert block.offset % PAGE_BYTES == 0
        assert block.offset + moved <= span.offset + span.file_room
        if block.route is Route.DIRECT:
            assert block.address % PAGE_BYTES == 0
            assert block.address + moved <= span.address + span.memory_room


@given(spans())
def test_only_edges_go_through_the_page_cache(span: Span) -> None:
    for block in split(span, BLOCK_BYTES):
        if block.route is Route.BUFFERED:
            assert block.nbytes < PAGE_BYTES


def test_aligned_memory_takes_no_detour() -> None:
    span = Span(0, 4 * PAGE_BYTES, 100, memory_room=PAGE_BYTES, file_room=PAGE_BYTES, label="w")
    assert list(split(span, BLOCK_BYTES)) == [Block(0, 4 * PAGE_BYTES, 100, Route.DIRECT, "w")]


def test_a_tail_without_room_in_memory_bounces_alone() -> None:
    nbytes = PAGE_BYTES + 1
    span = Span(0, PAGE_BYTES, nbytes, nbytes, 2 * PAGE_BYTES, "w")
    assert [(block.nbytes, block.route) for block in split(span, BLOCK_BYTES)] == [
        (PAGE_BYTES, Route.DIRECT),
        (1, Route.BOUNCE),
    ]


def test_more_than_two_gibibytes_in_blocks_that_one_call_can_move() -> None:
    nbytes = (5 << 30) + 17
    span = Span(PAGE_BYTES, 0, nbytes, page_aligned(nbytes), page_aligned(nbytes), "w")
    blocks = list(split(span, 1 << 30))
    assert [block.nbytes for block in blocks] == [1 << 30] * 5 + [17]
    assert {block.route for block in blocks} == {Route.DIRECT}
    assert blocks[-1].offset == PAGE_BYTES + (5 << 30)


@given(st.integers(0, 100), st.integers(1, 30))
def test_cut_covers_the_range_once(nbytes: int, block_bytes: int) -> None:
    covered = [start + i for start, length in cut(nbytes, block_bytes) for i in range(length)]
    assert covered == list(range(nbytes))
