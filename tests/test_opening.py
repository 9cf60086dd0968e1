"""What is said of the folders of a session when their files are opened."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from zcompile import opening
from zcompile.opening import open_files
from zcompile.options import Options
from zcompile.runtime.ledger import Ledger


def told(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Open files in ``folder``, as if everything were on a file system of that kind."""
    mounts = folder / "mountinfo"
    mounts.write_text(f"22 1 254:0 / / rw - {kind} device rw\n")
    monkeypatch.setattr(opening, "MOUNTS", mounts)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        file, transfers = open_files(Options.parse({"nvme_dir": folder}), 1 << 20, Ledger())
    assert file is not None
    transfers.close()
    file.close()
    return [str(each.message) for each in caught]


def test_a_folder_in_memory_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (warning,) = told("tmpfs", tmp_path, monkeypatch)
    assert warning.startswith(f"nvme_dir={str(tmp_path)!r}: is in memory (tmpfs), so ")


def test_a_folder_on_a_disk_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told("ext4", tmp_path, monkeypatch) == []
