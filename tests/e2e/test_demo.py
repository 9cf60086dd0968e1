"""`zinf demo` as its user runs it, on the real model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from zcompile.demo.summary import PROCESS_PEAK

BUDGET_MIB = 512.0
SLACK_MIB = 96.0
"""What the process may hold beyond the budget, the compiler's objects aside."""

ZINF = [sys.executable, "-c", "from zcompile.cli import main; main()"]


def zinf(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ZINF, *arguments],
        cwd=folder,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )


def figure(what: str, output: str) -> str:
    """Return the cell beside ``what`` in the table of results."""
    found = re.search(rf"│ {re.escape(what)} +│ (.*?) +│", output)
    assert found is not None, output
    return found[1]


def mebibytes(cell: str) -> float:
    found = re.match(r"([\d,.]+) MiB", cell)
    assert found is not None, cell
    return float(found[1].replace(",", ""))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_trains_within_its_budget_and_gives_the_losses_of_plain_pytorch(tmp_path: Path) -> None:
    done = zinf("demo", "--steps", "2", "--check", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every loss is bitwise equal to plain PyTorch's" in done.stdout
    assert "step 2/2: loss " in done.stdout
    assert figure("device budget", done.stdout) == f"{BUDGET_MIB} MiB"
    assert mebibytes(figure(PROCESS_PEAK, done.stdout)) <= BUDGET_MIB + SLACK_MIB
    # The weights alone are as large as the budget, and every iteration has to read them.
    assert mebibytes(figure("NVMe read, per iteration", done.stdout)) > BUDGET_MIB
    assert "fetch %model.embed_tokens.weight <- nvme as t" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_budget_that_cannot_work_is_refused_in_one_message(tmp_path: Path) -> None:
    refused = zinf("demo", "--device-budget", "100MiB", folder=tmp_path)
    assert refused.returncode == 1
    assert re.search(r"^zinf: device_budget=.* is the smallest that works$", refused.stderr, re.M)
    assert "Traceback" not in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_more_text_than_there_is_cannot_be_asked_for(tmp_path: Path) -> None:
    refused = zinf("demo", "--batch", "1000", folder=tmp_path)
    assert refused.returncode == 1
    assert "ask for a smaller --batch or a shorter --sequence" in refused.stderr
