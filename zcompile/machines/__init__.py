"""Machines to plan for, as files of numbers: those that ship, one's own, and the one we are on."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import resources
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from zcompile.ir import Hardware
from zcompile.machines.here import NAME as HERE
from zcompile.machines.here import here_path

_FILE = TypeAdapter(Hardware)


def machine_names() -> tuple[str, ...]:
    """Return the names of the machines that ship with the package.

    >>> "h100" in machine_names()
    True
    """
    files = resources.files(__name__).iterdir()
    return tuple(sorted(each.name[:-5] for each in files if each.name.endswith(".json")))


def load_machine(name_or_path: str | Path) -> Hardware:
    """Return the machine of that name, or the one in the JSON file at that path.

    ``"here"`` is the machine that this runs on, as ``zinf bench`` has measured it.  Raises
    ``ValueError`` that says what the file lacks or has wrong, or which names there are.

    >>> load_machine("h100").capacities["device"] > 79e9
    True
    """
    if str(name_or_path) in machine_names():
        text = resources.files(__name__).joinpath(f"{name_or_path}.json").read_text("utf-8")
        return parse_machine(text, str(name_or_path))
    if str(name_or_path) == HERE:
        return _load_here()
    path = Path(name_or_path)
    if not path.is_file():
        names = (*machine_names(), HERE)
        near = get_close_matches(str(path).lower(), names, n=1, cutoff=0.8)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"machine={str(path)!r} is neither a file nor one of {', '.join(names)}{meant}"
        )
    return parse_machine(path.read_text("utf-8"), str(path))


def _load_here() -> Hardware:
    path = here_path()
    if not path.is_file():
        raise ValueError(
            f"machine={HERE!r}: this machine has not been measured, there is no {path}: "
            "run zinf bench"
        )
    try:
        return parse_machine(path.read_text("utf-8"), str(path))
    except ValueError as error:
        raise ValueError(f"{error}; run zinf bench to measure anew") from None


def parse_machine(text: str, where: str) -> Hardware:
    """Return the machine that the JSON ``text`` describes; ``where`` is named in errors."""
    try:
        return _FILE.validate_json(text, extra="forbid")
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"])) or "the whole file"
        raise ValueError(f"machine {where}: {at}: {first['msg']}") from None


def render_machine(machine: Hardware) -> str:
    """Return the JSON text from which `load_machine` makes an equal machine."""
    return _FILE.dump_json(machine, indent=2).decode() + "\n"
