"""`zinf doctor` as a command."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from zcompile.cli import main
from zcompile.doctor.finding import Finding, Status
from zcompile.doctor.show import shown

RUN = CliRunner()
LONG = "not used: io_uring_setup: Operation not permitted; a container's profile may forbid it"
REMEDY = "allow io_uring: sysctl kernel.io_uring_disabled=0, or a profile that has it"


def test_it_prints_json_and_nothing_else(tmp_path: Path) -> None:
    ran = RUN.invoke(main, ["doctor", "--json", "--nvme-dir", str(tmp_path / "new")])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    subjects = {each["subject"] for each in told["findings"]}
    assert {"torch", "native library", "cores", "I/O", "direct I/O", "AdamW", "target"} <= subjects
    warnings = [each for each in told["findings"] if each["status"] == "warning"]
    assert told["num_warnings"] == len(warnings)
    assert all(each["remedy"] for each in warnings)
    assert list(tmp_path.iterdir()) == []


def test_several_folders_are_tried_together(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("one", "two")]
    given = [word for folder in folders for word in ("--nvme-dir", folder)]
    ran = RUN.invoke(main, ["doctor", "--json", *given])
    assert ran.exit_code == 0, ran.output
    findings = json.loads(ran.stdout)["findings"]
    assert sum(each["subject"] == "file system" for each in findings) == 2
    assert any(each["subject"] == "devices" for each in findings)
    assert list(tmp_path.iterdir()) == []


def test_warnings_do_not_make_it_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZINF_IO", "pigeons")
    monkeypatch.setenv("ZINF_NATIVE", "0")
    ran = RUN.invoke(main, ["doctor"])
    assert ran.exit_code == 0, ran.output
    assert "unset ZINF_IO" in ran.output


def test_a_folder_that_cannot_be_used_is_refused_at_once() -> None:
    ran = RUN.invoke(
        main,
        ["doctor", "--nvme-dir", "/proc/version"],
        env={"COLUMNS": "300", "NO_COLOR": "1"},
    )
    assert ran.exit_code == 2
    assert "is no folder; name a folder" in ran.output


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_and_loses_no_word(width: int) -> None:
    findings = [
        Finding("files", "registered buffers", Status.WARNING, LONG, REMEDY),
        Finding("files", "I/O", Status.OK, "threads, the best way that works here"),
    ]
    screen = StringIO()
    Console(file=screen, width=width).print(shown(findings))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(line[27:] if line[:27].strip() == "" else line for line in lines).split()
    for told in (LONG, REMEDY):
        assert set(told.split()) <= set(words)
    assert lines[-1] == "1 to look at: all work goes on without"
