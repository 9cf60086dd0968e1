"""What the documents say holds: examples run, links lead somewhere, options are all there."""

from __future__ import annotations

import ast
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
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)")
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


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_tests_that_are_named_exist(path: Path) -> None:
    cited = TEST.findall(path.read_text(encoding="utf-8"))
    assert [(file, name) for file, name in cited if name not in functions_of(ROOT / file)] == []


def test_every_mechanism_has_a_test() -> None:
    text = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 30
    assert [row for row in rows if not TEST.search(row)] == []


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
