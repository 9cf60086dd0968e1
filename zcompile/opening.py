"""Opens what the options of a session name: the files of homes, and what reads and writes them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from zcompile.options import Options
from zcompile.runtime.extents import ExtentFile
from zcompile.runtime.file_io import FileIO
from zcompile.runtime.folder import RunFolder
from zcompile.runtime.ledger import Ledger
from zcompile.runtime.mounts import IN_MEMORY, MOUNTS, file_system_of
from zcompile.runtime.transfers import Transfers, sums_refusal


def open_files(
    options: Options, block_bytes: int, ledger: Ledger
) -> tuple[ExtentFile | None, Transfers]:
    """Return the space of extents, ``None`` without folders, and the transfers to and from it.

    Bounce buffers have ``block_bytes``.  Raises ``ValueError`` for folders that cannot be used, or
    not with ``checksums``, and ``StorageError`` for a full or broken disk; nothing stays then.
    """
    _warn_of_memory(options.nvme_dirs)
    folders = RunFolder.create_all(options.nvme_dirs)
    file = ExtentFile(folders, sums=options.checksums) if folders else None
    transfers = Transfers(file, ledger, block_bytes=block_bytes, io=FileIO(options.io))
    refusal = sums_refusal(file, transfers) if file and options.checksums else None
    if file and refusal:
        transfers.close()
        file.close()
        raise ValueError(
            f"checksums=True: {refusal}; name a folder in nvme_dir where direct I/O works, under "
            "Linux 6.5 or later, or leave checksums out"
        )
    return file, transfers


def _warn_of_memory(folders: Sequence[Path]) -> None:
    mounts = MOUNTS.read_text()
    for folder in folders:
        kind = file_system_of(folder, mounts)
        if kind in IN_MEMORY:
            warnings.warn(
                f"nvme_dir={str(folder)!r}: is in memory ({kind}), so what rests there saves none; "
                "name a folder on a local disk",
                stacklevel=2,
            )
