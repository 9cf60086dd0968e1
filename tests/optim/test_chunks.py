"""Cutting and grouping: nothing lost, nothing twice, and within the window."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from zcompile.ir import PAGE_BYTES, Role, Tier
from zcompile.optim.chunks import CALL_NUMEL, GRAIN, LANES, Member, Part, buckets, cut


def member(
    numel: int,
    group: int = 0,
    *,
    itemsize: int = 4,
    widest: int | None = None,
    temporaries: int = 2,
    tails_differ: bool = False,
    threads: int = 1,
) -> Member:
    names = ("w", "w:grad", "w:exp_avg", "w:exp_avg_sq")
    sizes = (itemsize, itemsize, widest or itemsize, widest or itemsize)
    parts = tuple(
        Part(name, Role.STATE, Tier.NVME, size, written=True)
        for name, size in zip(names, sizes, strict=True)
    )
    return Member(parts, group, numel, itemsize, temporaries, tails_differ, threads)


@st.composite
def members(draw: st.DrawFn) -> list[Member]:
    groups = sorted(draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)))
    threads = draw(st.integers(1, 5))
    return [
        member(
            draw(st.integers(1, 300_000)),
            group,
            itemsize=draw(st.sampled_from([2, 4, 8])),
            widest=draw(st.sampled_from([None, 2, 4])),
            temporaries=draw(st.integers(0, 3)),
            tails_differ=draw(st.booleans()),
            threads=threads,
        )
        for group in groups
    ]


WINDOWS = st.integers(0, 1 << 20)


@given(members(), WINDOWS)
def test_every_element_is_in_one_bucket_in_order(members: list[Member], window_bytes: int) -> None:
    pieces = [piece for bucket in buckets(members, window_bytes) for piece in bucket.pieces]
    ends = [(piece.member, piece.start, piece.stop) for piece in pieces]
    assert ends == sorted(ends)
    for at, each in enumerate(members):
        own = [piece for piece in pieces if piece.member == at]
        assert [piece.start for piece in own] == [0, *(piece.stop for piece in own[:-1])]
        assert own[-1].stop == each.numel


@given(members(), WINDOWS)
def test_every_element_is_in_one_call_in_order(members: list[Member], window_bytes: int) -> None:
    for bucket in buckets(members, window_bytes):
        spans = [span for call in bucket.calls for span in call]
        for at, piece in enumerate(bucket.pieces):
            own = [span for span in spans if span.piece == at]
            assert [span.start for span in own] == [0, *(span.stop for span in own[:-1])]
            assert own[-1].stop == piece.numel
        assert [span.piece for span in spans] == sorted(span.piece for span in spans)


@given(members(), WINDOWS)
def test_buckets_keep_the_window_unless_a_piece_cannot_be_smaller(
    members: list[Member], window_bytes: int
) -> None:
    for bucket in buckets(members, window_bytes):
        pieces = bucket.pieces
        assert len({members[piece.member].group for piece in pieces}) == 1
        if sum(members[piece.member].cost_bytes(piece.numel) for piece in pieces) > window_bytes:
            (piece,) = pieces
            each = members[piece.member]
            assert piece.numel <= each.page_numel or not each.can_be_cut


@given(members(), WINDOWS)
def test_cuts_are_where_no_tail_is(members: list[Member], window_bytes: int) -> None:
    for bucket in buckets(members, window_bytes):
        for span in (span for call in bucket.calls for span in call):
            piece = bucket.pieces[span.piece]
            each = members[piece.member]
            assert all(each_part.nbytes(piece.start) % PAGE_BYTES == 0 for each_part in each.parts)
            assert (piece.start + span.start) % LANES == 0
            if each.tails_differ and each.threads > 1:
                assert span.stop - span.start in range(GRAIN) or not each.can_be_cut
            if each.temporaries and each.can_be_cut:
                assert span.stop - span.start <= CALL_NUMEL


@given(st.integers(1, 300_000), st.integers(0, 3))
def test_the_smallest_pieces_are_as_small_as_we_say(numel: int, temporaries: int) -> None:
    each = member(numel, temporaries=temporaries)
    costs = [each.cost_bytes(stop - start) for start, stop in cut(each, 0)]
    assert max(costs) == each.smallest_bytes


def test_pieces_of_one_tensor_are_of_one_size_but_for_the_last() -> None:
    sizes = [stop - start for start, stop in cut(member(1_000_000), 1 << 20)]
    assert len(sizes) > 10
    assert set(sizes[:-1]) == {max(sizes)}


def test_small_parameters_share_buckets_and_calls() -> None:
    each = [member(100) for _ in range(50)]
    (bucket,) = buckets(each, 1 << 20)
    assert len(bucket.calls) == 1
    assert len(buckets(each, 50_000)) > 1


def test_odd_sizes_on_several_threads_stay_whole_where_tails_differ() -> None:
    odd = member(2 * GRAIN + 2, itemsize=2, tails_differ=True, threads=2)
    assert list(cut(odd, 0)) == [(0, odd.numel)]
    assert len(list(cut(replace(odd, threads=1), 0))) > 1
    assert len(list(cut(replace(odd, numel=2 * GRAIN), 0))) > 1
