"""The text form carries everything, and says where it cannot be read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.schedules import layers, many
from zcompile.ir import (
    Compute,
    Fetch,
    Offload,
    Release,
    Role,
    Schedule,
    Step,
    Tier,
    Update,
    Value,
    Wait,
    is_name,
    parse,
    render,
)

TEXT = """\
schedule forward.0
value %x : 8 B input @ device held
value %layers.0.weight : 100 B parameter @ nvme
value %layers.0.weight:grad : 100 B gradient @ host
value %h : 8 B intermediate @ device
fetch %layers.0.weight <- nvme as t0 at 4096
wait %layers.0.weight for t0
compute seg_1(%x, %layers.0.weight) -> (%h, %layers.0.weight:grad) transient 64 B
update bucket_0() -> () transient 0 B
offload %layers.0.weight:grad -> host as t3
release %layers.0.weight:grad after t3
release %layers.0.weight
output %h
arena 8192 B
"""

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(is_name)
numbers = st.integers(0, 1 << 60)
tuples = st.lists(names, max_size=3).map(tuple)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(Compute, names, tuples, tuples, numbers),
    st.builds(Update, names, tuples, tuples, numbers),
    st.builds(Fetch, numbers, names, st.sampled_from(Tier), st.none() | numbers),
    st.builds(Wait, numbers, names),
    st.builds(Offload, numbers, names, st.sampled_from(Tier)),
    st.builds(Release, names, st.none() | numbers),
)
schedules = st.builds(
    Schedule,
    names,
    st.lists(
        st.builds(
            Value, names, numbers, st.sampled_from(Role), st.sampled_from(Tier), st.booleans()
        ),
        max_size=4,
    ).map(tuple),
    st.lists(steps, max_size=6).map(tuple),
    tuples,
    numbers,
    st.booleans(),
)


@many
@given(schedules)
def test_what_is_printed_parses_back(schedule: Schedule) -> None:
    assert parse(render(schedule)) == schedule


def test_the_form_of_every_line() -> None:
    assert render(parse(TEXT)) == TEXT


def test_an_arena_says_whether_it_is_vacated() -> None:
    vacated = TEXT.replace("arena 8192 B", "arena 8192 B vacated")
    assert not parse(TEXT).vacates
    assert parse(vacated) == replace(parse(TEXT), vacates=True)
    assert render(parse(vacated)) == vacated


def test_comments_and_empty_lines_mean_nothing() -> None:
    commented = TEXT.replace("fetch", "# why\n\n   fetch")
    assert parse(commented) == parse(TEXT)


def test_one_line_a_step() -> None:
    schedule = layers(5)
    expected = 2 + len(schedule.values) + len(schedule.steps) + len(schedule.outputs)
    assert len(render(schedule).splitlines()) == expected


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("fetch %w", "'fetch %w' does not have the form of a fetch line"),
        ("fetch %w <- tape as t0", "'tape' is not a valid Tier"),
        ("value %w : 8 B weight @ host", "'weight' is not a valid Role"),
        ("value w : 8 B input @ host", "does not have the form of a value line"),
        ("compute k(x) -> () transient 0 B", "'x' is no value"),
        ("compute k(%x,%y) -> () transient 0 B", "is no value"),
        ("compute k(%x) -> ()", "does not have the form of a compute line"),
        ("wait %w for t-1", "does not have the form of a wait line"),
        ("seize %w", "'seize' begins no line"),
        ("schedule twice", "a second schedule"),
        ("arena 1 B\narena 2 B", "a second arena"),
        ("arena 1 B static", "does not have the form of a arena line"),
    ],
)
def test_an_error_names_the_line(line: str, why: str) -> None:
    number = 3 + line.count("\n")
    with pytest.raises(ValueError, match=f"^line {number}: .*{why}"):
        parse(f"schedule s\n# comment\n{line}\n")


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n\n"])
def test_a_text_without_a_schedule(text: str) -> None:
    with pytest.raises(ValueError, match="ends before 'schedule NAME'"):
        parse(text)


def test_the_schedule_comes_first() -> None:
    with pytest.raises(ValueError, match="line 1: the first line must be"):
        parse("arena 0 B\nschedule s\n")


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a(b", "a)b", "%a", "a\u2028b", "a\x1fb"])
def test_names_that_text_cannot_carry(name: str) -> None:
    assert not is_name(name)


def test_the_same_schedule_gives_the_same_text() -> None:
    assert render(layers(3)) == render(replace(layers(3)))
