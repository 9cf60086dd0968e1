"""Run folders: private, locked, gone after use; those of killed runs go with the next run."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from zcompile.runtime.errors import StorageError
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.folder import RunFolder

RUN = """
import os, sys
from pathlib import Path
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.folder import RunFolder
folder = RunFolder.create(Path(sys.argv[1]))
file = ExtentFile(folder)
lease = file.lease(1000, "w")
print(folder.path, flush=True)
"""


def start_run(nvme_dir: Path, then: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN + then, str(nvme_dir)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )


def path_of(run: subprocess.Popen[str]) -> Path:
    assert run.stdout is not None
    return Path(run.stdout.readline().strip())


def killed_run(nvme_dir: Path) -> Path:
    with start_run(nvme_dir, "sys.stdin.read()") as run:
        path = path_of(run)
        run.kill()
    assert sorted(os.listdir(path)) == ["extents.bin", "lock"]
    return path


def test_the_folder_is_private_and_says_whose_it_is(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    assert folder.path.parent == tmp_path
    assert folder.path.name.startswith(f"zinf-{os.getpid()}-")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    lock = folder.path / "lock"
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    assert json.loads(lock.read_text())["pid"] == os.getpid()
    folder.close()


def test_closing_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    file = ExtentFile(folder)
    folder.close()
    folder.close()
    file.close()
    assert os.listdir(tmp_path) == []


def test_the_last_reference_removes_the_folder(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    path = folder.path
    del folder
    assert not path.exists()


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise RuntimeError"])
def test_a_run_that_ends_by_itself_leaves_nothing(tmp_path: Path, end: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", RUN + end, str(tmp_path)], capture_output=True, check=False
    )
    assert run.stdout
    assert os.listdir(tmp_path) == []


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    stale = killed_run(tmp_path)
    folder = RunFolder.create(tmp_path)
    assert not stale.exists()
    assert folder.path.exists()
    folder.close()


def test_a_living_run_keeps_its_folder(tmp_path: Path) -> None:
    with start_run(tmp_path, "sys.stdin.read()") as run:
        path = path_of(run)
        RunFolder.create(tmp_path).close()
        assert sorted(os.listdir(path)) == ["extents.bin", "lock"]
        run.communicate("")
    assert os.listdir(tmp_path) == []


def test_several_runs_share_a_process_and_a_folder(tmp_path: Path) -> None:
    folders = [RunFolder.create(tmp_path) for _ in range(3)]
    assert sorted(os.listdir(tmp_path)) == sorted(folder.path.name for folder in folders)
    for left, folder in enumerate(folders, 1):
        folder.close()
        assert len(os.listdir(tmp_path)) == 3 - left


def test_many_processes_start_at_once(tmp_path: Path) -> None:
    killed_run(tmp_path)
    runs = [start_run(tmp_path, "sys.stdin.read()") for _ in range(4)]
    paths = [path_of(run) for run in runs]
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in paths)
    for run in runs:
        run.communicate("")
    assert os.listdir(tmp_path) == []


def test_foreign_files_are_never_removed(tmp_path: Path) -> None:
    half_made = tmp_path / "zinf-1-00000000"  # killed before it had a lock: empty, and ours
    half_made.mkdir()
    (tmp_path / "zinf-2-00000000").mkdir()
    (tmp_path / "zinf-2-00000000" / "thesis.tex").touch()
    (tmp_path / "zinf-3-00000000").mkdir()
    (tmp_path / "zinf-3-00000000" / "lock").write_text("somebody else's lock")
    (tmp_path / "zinf-4-00000000").mkdir()
    (tmp_path / "zinf-4-00000000" / "lock").write_text('["no", "object"]')
    (tmp_path / "zinf-5-00000000").write_text("a file")
    (tmp_path / "zinf-mine").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_text('{"format": "zinf run folder"}')
    (tmp_path / "zinf-6-00000000").symlink_to(elsewhere)
    before = {path for path in tmp_path.rglob("*") if path != half_made}
    RunFolder.create(tmp_path).close()
    assert set(tmp_path.rglob("*")) == before


def test_a_strange_file_in_a_killed_run_stays_with_its_folder(tmp_path: Path) -> None:
    stale = killed_run(tmp_path)
    (stale / "notes.txt").touch()
    RunFolder.create(tmp_path).close()
    assert os.listdir(stale) == ["notes.txt"]


def test_a_forked_child_removes_nothing(tmp_path: Path) -> None:
    end = "\nif os.fork() == 0: sys.exit()\nos.wait()\nprint(os.listdir(folder.path))"
    run = subprocess.run(
        [sys.executable, "-c", RUN + end, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert "extents.bin" in run.stdout.splitlines()[-1]
    assert os.listdir(tmp_path) == []


def test_a_missing_nvme_dir_is_made(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "swap")
    assert stat.S_IMODE((tmp_path / "swap").stat().st_mode) == 0o700
    folder.close()


def test_a_relative_nvme_dir_survives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(Path("swap"))
    monkeypatch.chdir("/")
    folder.close()
    assert os.listdir(tmp_path / "swap") == []


@pytest.mark.parametrize("name", ["file", "no/such/parent"])
def test_an_unusable_nvme_dir_names_option_value_and_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="nvme_dir") as caught:
        RunFolder.create(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert "give a folder" in str(caught.value)


def refuse_to_make_folders(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(_path: Path, mode: int = 0o777, exist_ok: bool = False) -> None:
        assert mode == 0o700
        if not exist_ok:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refuse)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTSUP])
def test_a_refusing_nvme_dir_names_option_value_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_to_make_folders(monkeypatch, code)
    with pytest.raises(
        ValueError, match=r"option nvme_dir=.*cannot be used .*give a folder"
    ) as caught:
        RunFolder.create(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert os.strerror(code) in str(caught.value)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_to_make_folders(monkeypatch, code)
    with pytest.raises(StorageError, match=rf"{errno.errorcode[code]}.*nvme_dir"):
        RunFolder.create(tmp_path)
