"""The file of the machine we are on, which ``zinf bench`` writes and planning reads."""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = "here"
"""The machine of that name is this one, as it was measured."""

CACHE_VARIABLE = "XDG_CACHE_HOME"
"""The environment variable that names the folder of caches; without it, ``~/.cache``."""


def here_path(env: Mapping[str, str] | None = None) -> Path:
    """Return where this machine's numbers are kept, whether or not they are there.

    Machines that share a home directory have files of their own, and so have runs that may
    use other processors of one machine.
    """
    return _folder(os.environ if env is None else env) / f"{NAME}-{_machine_id()}.json"


def results_path(env: Mapping[str, str] | None = None) -> Path:
    """Return where all that was measured here is kept, beside `here_path`."""
    return here_path(env).with_name(f"bench-{_machine_id()}.json")


def write_private(path: Path, text: str) -> None:
    """Put ``text`` into the file at ``path``, which only its owner may read, whole or not at all.

    The folder is made if need be.  Raises ``ValueError`` with the remedy where it cannot be.
    """
    with _beside(path) as (fd, name):
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)


def check_writable(path: Path) -> None:
    """Raise what `write_private` would raise, before there is anything to write."""
    with _beside(path) as (fd, _):
        os.close(fd)


@contextmanager
def _beside(path: Path) -> Generator[tuple[int, str]]:
    """Lend a new private file in the folder of ``path``; unless it was renamed, it goes."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        try:
            yield fd, name
        finally:
            with suppress(FileNotFoundError):
                os.unlink(name)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({error.strerror}): "
            f"set {CACHE_VARIABLE} to a folder that you may write to"
        ) from error


def _folder(env: Mapping[str, str]) -> Path:
    given = env.get(CACHE_VARIABLE, "")
    # By its specification a path that is not absolute is to be ignored.
    if given.startswith("/"):
        return Path(given) / "zinf"
    try:
        return Path.home() / ".cache" / "zinf"
    except RuntimeError as error:
        raise ValueError(f"{error}: set {CACHE_VARIABLE} to a folder for caches") from None


def _machine_id() -> str:
    cpus = sorted(os.sched_getaffinity(0))
    told = (platform.node(), platform.machine(), cpu_model(), cpus)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


def cpu_model() -> str:
    """Return what the processor calls itself, or else its architecture."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
