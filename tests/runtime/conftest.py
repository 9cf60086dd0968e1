"""What the tests of the runtime share: a file of extents in a folder of its own."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import cast

import pytest

from zcompile.ir import PAGE_BYTES
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of modules that say ``STRIPED`` in one folder, and striped over three."""
    module = cast("object", metafunc.module)
    if getattr(module, "STRIPED", False) and "extent_file" in metafunc.fixturenames:
        metafunc.parametrize("extent_file", [1, 3], ids=["one", "striped"], indirect=True)


@pytest.fixture
def extent_file(
    tmp_path: Path, request: pytest.FixtureRequest
) -> Generator[ExtentFile, None, None]:
    num_folders = getattr(request, "param", 1)
    folders = RunFolder.create_all(tmp_path / f"swap{at or ''}" for at in range(num_folders))
    file = ExtentFile(folders, slab_bytes=1 << 20, stripe_bytes=2 * PAGE_BYTES)
    yield file
    file.close()
    for folder in folders:
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
