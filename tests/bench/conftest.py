"""What the tests of ``zinf bench`` share: a record of one small run."""

from __future__ import annotations

from pathlib import Path

import pytest

from zcompile.bench.effort import Effort
from zcompile.bench.record import Record
from zcompile.bench.run import measure_here

SMALL = Effort(
    array_bytes=1 << 18,
    num_parameters=1 << 14,
    file_bytes=1 << 20,
    matrix_rows=64,
    scale=0.0,
    least_rounds=2,
)


def quietly(title: str, num_stages: int) -> None:
    del title, num_stages


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which something was measured."""
    return tmp_path_factory.mktemp("measured")


@pytest.fixture(scope="session")
def record(folder: Path) -> Record:
    return measure_here([folder], SMALL, quietly, quick=True)
