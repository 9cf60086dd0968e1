"""What docs/coverage.md says of families and modules is what the tests hold."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architectures.families import FAMILIES
from tests.architectures.modules import NAMES, samples_of
from tests.architectures.test_modules import LEFT_EAGER, spread

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"

ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|(?: ([^|]+) \|)?$", re.MULTILINE)


def rows() -> dict[str, tuple[str, str]]:
    found = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {first: (second, third) for first, second, third in found}


def test_every_family_is_listed_under_its_kind() -> None:
    kinds: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        kinds.setdefault(family.kind, []).append(name)
    listed = {kind: row[0].split(", ") for kind, row in rows().items() if kind in kinds}
    assert listed == {kind: sorted(names) for kind, names in kinds.items()}


def test_families_with_other_bits_are_named_with_a_reason() -> None:
    others = [name for name, family in FAMILIES.items() if family.reference != "eager"]
    assert all(FAMILIES[name].because for name in others)
    (sentence,) = re.findall(r"are the bits of: ([^.]*)\.", PAGE.read_text(encoding="utf-8"))
    assert sentence.split(", ") == sorted(others)


def test_the_numbers_of_modules_and_samples() -> None:
    numbers = [(int(a), int(b)) for a, b in rows().values() if a.isdigit() and b.isdigit()]
    assert numbers == [
        (len(NAMES), sum(len(samples_of(name)) for name in NAMES)),
        (len(NAMES), sum(len(spread(samples_of(name))) for name in NAMES)),
    ]


def test_modules_left_to_eager_code_are_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert {name for name in LEFT_EAGER if f"`{name}`" not in text} == set()
