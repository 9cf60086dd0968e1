"""What the tests of the runtime share: a file of extents in a folder of its own."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO, refusal
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.homes import Homes
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.transfers import Copies, Transfers

USABLE = [io for io in FileIO if io is not FileIO.AUTO and refusal(io) is None]
"""The ways to read and write files that this machine has."""


@pytest.fixture(params=USABLE)
def io(request: pytest.FixtureRequest) -> FileIO:
    """Each way to read and write files."""
    way: FileIO = request.param
    return way


@pytest.fixture
def extent_file(tmp_path: Path) -> Generator[ExtentFile, None, None]:
    folder = RunFolder.create(tmp_path / "swap")
    file = ExtentFile(folder, slab_bytes=1 << 20)
    yield file
    file.close()
    folder.close()


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def homes(extent_file: ExtentFile, ledger: Ledger) -> Generator[Homes, None, None]:
    homes = Homes(extent_file, ledger)
    yield homes
    homes.close()


@pytest.fixture
def copies(extent_file: ExtentFile, ledger: Ledger) -> Generator[Copies, None, None]:
    copies = Transfers(extent_file, ledger)
    yield copies
    copies.close()
