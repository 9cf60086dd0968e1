"""`zinf bench` as a command: what it prints, keeps and refuses."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from io import StringIO
from pathlib import Path
from time import monotonic, sleep

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.bench.conftest import SMALL
from zcompile.bench import run
from zcompile.bench.record import Record
from zcompile.bench.show import figures_table, progress_on
from zcompile.cli import main
from zcompile.machines import load_machine, parse_machine
from zcompile.machines.here import here_path, results_path

RUN = CliRunner()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(run, "QUICK", SMALL)
    return tmp_path / "cache"


def test_it_prints_json_and_keeps_the_target(tmp_path: Path) -> None:
    swap = tmp_path / "swap"
    ran = RUN.invoke(main, ["bench", "--quick", "--json", "--nvme-dir", str(swap)])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    here = load_machine("here")
    assert parse_machine(json.dumps(told["hardware"]), "here") == here
    assert str(swap) in here.source
    assert json.loads(results_path().read_text()) == told
    for path in (here_path(), results_path()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(swap.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreached(*_: object, **__: object) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/version")
    monkeypatch.setattr(run, "measure_here", unreached)
    monkeypatch.chdir(tmp_path)
    ran = RUN.invoke(main, ["bench", "--quick"])
    assert ran.exit_code == 1
    assert "set XDG_CACHE_HOME to a folder" in ran.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_refused_at_once(cache: Path) -> None:
    ran = RUN.invoke(
        main, ["bench", "--nvme-dir", "/proc/version"], env={"COLUMNS": "300", "NO_COLOR": "1"}
    )
    assert ran.exit_code == 2
    assert "is no folder; name a folder" in ran.output
    assert not cache.exists()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_has_every_figure(record: Record, width: int) -> None:
    screen = StringIO()
    Console(file=screen, width=width).print(figures_table(record.measured))
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    assert "..." not in screen.getvalue()
    assert "…" not in screen.getvalue()
    for unit in ("GB/s", "GFLOP/s", "ns/parameter", "us"):
        assert any(unit in line for line in lines)


def test_progress_goes_from_stage_to_stage() -> None:
    screen = StringIO()
    terminal = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with progress_on(terminal) as progress:
        progress("reading", 2)
        progress("writing", 2)
    assert "writing" in screen.getvalue()
    silent = Console(file=StringIO(), width=80)
    with progress_on(silent) as progress:
        progress("reading", 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_leaves_no_file_and_no_figures(
    tmp_path: Path, cache: Path, number: signal.Signals
) -> None:
    swap = tmp_path / "swap"
    # A shell that started the tests in the background had this process ignore interrupts.
    code = (
        "import signal\n"
        "from zcompile.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "bench"]
    with subprocess.Popen([*command, "--nvme-dir", str(swap)], stderr=subprocess.PIPE) as ran:
        end = monotonic() + 240
        while not (swap.exists() and any(swap.iterdir())):
            assert ran.poll() is None, ran.communicate()
            assert monotonic() < end, "no file appeared"
            sleep(0.05)
        ran.send_signal(number)
        ran.communicate()
    assert ran.returncode != 0
    assert list(swap.iterdir()) == []
    assert [path for path in cache.rglob("*") if path.is_file()] == []
