"""What the documents say holds: examples run, links lead somewhere, options are all there."""

from __future__ import annotations

import doctest
import re
from dataclasses import fields
from pathlib import Path

import pytest

from zcompile.options import Options

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
OPTION_ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_examples_give_what_they_show(path: Path) -> None:
    failed, _ = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
    assert failed == 0


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_to_files_lead_somewhere(path: Path) -> None:
    links = LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8")))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []


def test_the_index_names_every_document() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= set(LINK.findall(index))


def test_the_readme_lists_the_options_that_there_are() -> None:
    _, _, table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Options")
    assert sorted(OPTION_ROW.findall(table)) == sorted(field.name for field in fields(Options))


def test_there_are_examples_to_run() -> None:
    text = (ROOT / "docs" / "schedule.md").read_text(encoding="utf-8")
    assert len(doctest.DocTestParser().get_examples(text)) > 10
