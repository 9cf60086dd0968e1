"""Runs take turns, and figures are what they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from zcompile.bench.figure import Figure, Measured, Scale, Unit, figures_of
from zcompile.bench.files import part_beside
from zcompile.bench.sampling import Pace, Spread, alternate, computing_with


def test_a_spread_is_the_median_and_the_quartiles() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 5.0, 4.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_runs_take_turns_and_the_first_round_does_not_count() -> None:
    log: list[str] = []

    def run(name: str) -> Callable[[], float]:
        def call() -> float:
            log.append(name)
            return float(len(log))

        return call

    samples = alternate({"a": run("a"), "b": run("b")}, Pace(seconds=0.0, least_rounds=3))
    assert "".join(log) == "abbaabba"
    assert samples == {"a": [4.0, 5.0, 8.0], "b": [3.0, 6.0, 7.0]}


def test_threads_are_what_they_were_afterwards() -> None:
    def interrupted(threads: int) -> None:
        with computing_with(threads):
            assert torch.get_num_threads() == threads
            raise KeyboardInterrupt

    before = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        interrupted(before + 1)
    assert torch.get_num_threads() == before


def test_rates_and_times_come_out_of_seconds() -> None:
    assert Scale(Unit.BYTES_PER_S, 100).figure(2.0) == 50.0
    assert Scale(Unit.FLOPS_PER_S, 100).figure(4.0) == 25.0
    assert Scale(Unit.SECONDS_PER_PARAMETER, 100).figure(2.0) == 0.02
    assert Scale(Unit.SECONDS, 1).figure(2.0) == 2.0


def test_a_figure_is_compared_with_its_limit_round_by_round() -> None:
    samples = {"ours": [2.0, 1.0], "limit": [1.0, 1.0]}
    scale = Scale(Unit.BYTES_PER_S, 8)
    ours, limit = figures_of("reads", None, samples, lambda _: scale, {"ours": "limit"})
    assert (ours.limit, ours.of_limit) == ("limit", Spread(0.75, 0.625, 0.875, 2))
    assert (ours.spread.median, limit.spread.median) == (6.0, 8.0)
    assert limit.of_limit is None


def test_a_limit_that_moves_more_bytes_is_scaled_down() -> None:
    samples = {"update": [1.0], "stream": [2.0]}

    def scale_of(name: str) -> Scale:
        return Scale(Unit.SECONDS_PER_PARAMETER, 2.0 if name == "stream" else 1.0)

    update, _ = figures_of("updates", 1, samples, scale_of, {"update": "stream"})
    assert update.of_limit == Spread(1.0, 1.0, 1.0, 1)


def test_the_median_with_the_most_threads_is_taken() -> None:
    one, two = (
        Figure("memory", "triad", threads, Unit.BYTES_PER_S, Spread.of([10.0 * threads]))
        for threads in (1, 2)
    )
    measured = Measured((two, one))
    assert measured.median("memory", "triad") == 20.0
    assert measured.median("memory", "triad", 1) == 10.0
    assert measured.names("memory") == ("triad",)
    with pytest.raises(KeyError, match="memory: write"):
        measured.median("memory", "write")


@pytest.mark.parametrize(
    ("alone", "together", "part"),
    [
        ((1.0, 1.0), 1.0, 1.0),
        ((1.0, 3.0), 3.5, 2 / 3),
        ((2.0, 2.0), 9.0, 0.5),
        ((2.0, 1.0), 0.5, 1),
    ],
)
def test_the_part_that_each_direction_keeps(
    alone: tuple[float, float], together: float, part: float
) -> None:
    assert part_beside(*alone, together) == pytest.approx(part)
