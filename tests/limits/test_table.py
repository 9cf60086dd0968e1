"""Every row of the table in docs/limits.md names a test that there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"^\|.*\| `(?P<file>test_\w+\.py)::(?P<test>test_\w+)` \|$")


def test_each_row_is_held_by_a_test() -> None:
    text = (HERE.parents[1] / "docs" / "limits.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    found = [ROW.match(row) for row in rows]
    assert [row for row, match in zip(rows, found, strict=True) if match is None] == []
    named = [(match["file"], match["test"]) for match in found if match is not None]
    assert len(named) > 30
    there = {
        (path.name, node.name)
        for path in HERE.glob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert [each for each in named if each not in there] == []
