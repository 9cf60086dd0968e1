"""The folder for what does not fit into memory."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def swap_folder(given: Path | None) -> Generator[Path]:
    """Yield the folder for homes: the given one, or one in the current folder for a while.

    Not one in ``/tmp``, which may be memory: then nothing would be gained by moving there.
    """
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix=".zinf-demo-", dir=Path.cwd()) as folder:
        yield Path(folder)
