"""Which file system a folder is on."""

from __future__ import annotations

from pathlib import Path

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""The file systems whose files take memory."""

MOUNTS = Path("/proc/self/mountinfo")
"""What is mounted where, as this process sees it."""


def file_system_of(folder: Path, mounts: str) -> str:
    """Return the kind of file system that ``folder`` is on; ``mounts`` is ``mountinfo``."""
    deepest, kind = Path("/"), "an unknown file system"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(_unescaped(before.split()[4]))
        # Of two mounts at one point the later hides the earlier.
        if folder.resolve().is_relative_to(point) and point.is_relative_to(deepest):
            deepest, kind = point, after.split()[0]
    return kind


def _unescaped(point: str) -> str:
    return point.replace(r"\040", " ").replace(r"\011", "\t").replace(r"\134", "\\")
