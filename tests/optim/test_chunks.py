"""Cutting and grouping: nothing lost, nothing twice, and within the window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zcompile.ir import PAGE_BYTES, Role, Tier
from zcompile.optim.chunks import GRAIN, Member, Part, buckets, cut, shares_end_evenly


def member(
    numel: int,
    group: int = 0,
    *,
    itemsize: int = 4,
    temporaries: int = 2,
    tails_differ: bool = False,
) -> Member:
    names = ("w", "w:grad", "w:exp_avg", "w:exp_avg_sq")
    parts = tuple(Part(name, Role.STATE, Tier.NVME, written=True) for name in names)
    return Member(parts, group, numel, itemsize, temporaries, tails_differ)


@st.composite
def members(draw: st.DrawFn) -> list[Member]:
    groups = sorted(draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)))
    return [
        member(
            draw(st.integers(1, 300_000)),
            group,
            itemsize=draw(st.sampled_from([2, 4, 8])),
            temporaries=draw(st.integers(0, 3)),
            tails_differ=draw(st.booleans()),
        )
        for group in groups
    ]


@given(members(), st.integers(0, 1 << 20), st.integers(1, 5))
def test_every_element_is_in_one_bucket_in_order(
    members: list[Member], window_bytes: int, threads: int
) -> None:
    pieces = [piece for bucket in buckets(members, window_bytes, threads) for piece in bucket]
    ends = [(piece.member, piece.start, piece.stop) for piece in pieces]
    assert ends == sorted(ends)
    for at, each in enumerate(members):
        own = [piece for piece in pieces if piece.member == at]
        assert [piece.start for piece in own] == [0, *(piece.stop for piece in own[:-1])]
        assert own[-1].stop == each.numel


@given(members(), st.integers(0, 1 << 20), st.integers(1, 5))
def test_buckets_keep_the_window_unless_a_piece_cannot_be_smaller(
    members: list[Member], window_bytes: int, threads: int
) -> None:
    for bucket in buckets(members, window_bytes, threads):
        assert len({members[piece.member].group for piece in bucket}) == 1
        if sum(members[piece.member].cost_bytes(piece.numel) for piece in bucket) > window_bytes:
            (piece,) = bucket
            each = members[piece.member]
            whole = piece.numel == each.numel
            assert piece.numel * each.itemsize <= PAGE_BYTES or (whole and each.tails_differ)


@given(members(), st.integers(0, 1 << 20), st.integers(1, 5))
def test_pieces_begin_at_pages_and_end_where_tails_do_not_matter(
    members: list[Member], window_bytes: int, threads: int
) -> None:
    for each in members:
        pieces = list(cut(each, window_bytes, threads))
        assert all(start * each.itemsize % PAGE_BYTES == 0 for start, _ in pieces)
        if each.tails_differ and len(pieces) > 1:
            assert shares_end_evenly(each.numel, threads)
            assert all(shares_end_evenly(stop - start, threads) for start, stop in pieces)


@given(st.integers(1, 300_000), st.integers(1, 5))
def test_the_smallest_pieces_are_as_small_as_we_say(numel: int, threads: int) -> None:
    each = member(numel)
    costs = [each.cost_bytes(stop - start) for start, stop in cut(each, 0, threads)]
    assert max(costs) == each.smallest_bytes(threads)


def test_pieces_of_one_tensor_are_of_one_size_but_for_the_last() -> None:
    sizes = [stop - start for start, stop in cut(member(1_000_000), 1 << 20, threads=1)]
    assert len(sizes) == 24
    assert set(sizes[:-1]) == {max(sizes)}


def test_small_parameters_share_a_bucket() -> None:
    each = [member(100) for _ in range(50)]
    assert len(buckets(each, 1 << 20, threads=1)) == 1
    assert len(buckets(each, 50_000, threads=1)) > 1


def test_odd_sizes_on_several_threads_stay_whole_where_tails_differ() -> None:
    odd = member(2 * GRAIN + 2, itemsize=2, tails_differ=True)
    assert list(cut(odd, 0, threads=2)) == [(0, odd.numel)]
    assert len(list(cut(odd, 0, threads=1))) > 1
    even = member(2 * GRAIN, itemsize=2, tails_differ=True)
    assert len(list(cut(even, 0, threads=2))) > 1
