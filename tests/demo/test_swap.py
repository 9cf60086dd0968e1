"""Where the demo puts what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from zcompile.demo.swap import swap_folder


def test_a_temporary_folder_is_made_here_and_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with swap_folder(None) as folder:
        assert folder.parent == tmp_path
        (folder / "extents.bin").touch()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_user_is_used_as_it_is(tmp_path: Path) -> None:
    with swap_folder(tmp_path) as folder:
        assert folder == tmp_path
    assert tmp_path.exists()
